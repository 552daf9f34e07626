// f16 matrices of 48 columns, exact: panels of 1536 bytes.
MLXR_OUTLINE void f16_48_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 48) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_F16, panel, 48, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void f16_48_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    float_panel_f32(MLXR_F16, panel, 48, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix f16_48_exact = { f16_48_exact_dot, f16_48_exact_unpack, 1536, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish_bias(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .bias = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

// f16 matrices of 512 columns, exact: panels of 16384 bytes.
MLXR_OUTLINE void f16_512_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 512) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_F16, panel, 512, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void f16_512_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    float_panel_f32(MLXR_F16, panel, 512, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix f16_512_exact = { f16_512_exact_dot, f16_512_exact_unpack, 16384, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish_bias_residual(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .bias = 1, .residual = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

MLXR_OUTLINE void finish_bias_gelu(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .activation = MLXR_GELU, .bias = 1, .gated = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

// f16 matrices of 136 columns, exact: panels of 4352 bytes.
MLXR_OUTLINE void f16_136_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 136) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_F16, panel, 136, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void f16_136_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    float_panel_f32(MLXR_F16, panel, 136, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix f16_136_exact = { f16_136_exact_dot, f16_136_exact_unpack, 4352, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { 0 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

