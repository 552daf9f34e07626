// f32 matrices of 256 columns: panels of 16384 bytes.
MLXR_OUTLINE void f32_256_f32_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 256) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_F32, panel, 256, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void f32_256_f32_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    float_panel_f32(MLXR_F32, panel, 256, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix f32_256_f32 = { f32_256_f32_dot, f32_256_f32_unpack, 16384, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish_residual(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .residual = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

// f32 matrices of 88 columns: panels of 5632 bytes.
MLXR_OUTLINE void f32_88_f32_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 88) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_F32, panel, 88, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void f32_88_f32_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    float_panel_f32(MLXR_F32, panel, 88, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix f32_88_f32 = { f32_88_f32_dot, f32_88_f32_unpack, 5632, MLXR_ROWS_F32 };

// f32 matrices of 48 columns: panels of 3072 bytes.
MLXR_OUTLINE void f32_48_f32_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 48) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_F32, panel, 48, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void f32_48_f32_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    float_panel_f32(MLXR_F32, panel, 48, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix f32_48_f32 = { f32_48_f32_dot, f32_48_f32_unpack, 3072, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { 0 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

MLXR_OUTLINE void finish_silu(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .activation = MLXR_SILU, .gated = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

MLXR_OUTLINE void finish_out_scale_0p0625(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .out_scale = 0.0625f };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

