// bf16 matrices of 48 columns: panels of 1536 bytes.
MLXR_OUTLINE void bf16_48_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
#if defined(MLXR_AMX)
    if (m >= MLXR_BF16_FROM) {
        float_panel_columns(MLXR_BF16, panel, 48, valid, x, m, y);
        return;
    }
#elif defined(MLXR_BF16_MATMUL)
    if (m >= MLXR_BF16_FROM) {
        const size_t x_bytes = mlxr_row_bytes(MLXR_ROWS_BF16, 48);
        for (int i = 0; i < m; i += 12, x += 12 * x_bytes)
            MLXR_BY_12_ROWS(m - i, float_panel_pairs(MLXR_BF16, panel, 48, valid, x, x_bytes, MLXR_M, y + i))
        return;
    }
#endif
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 48) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_BF16, panel, 48, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void bf16_48_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    float_panel_bf16(MLXR_BF16, panel, 48, valid, k0, k1, (uint16_t *)dst);
    return;
#endif
    float_panel_f32(MLXR_BF16, panel, 48, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix bf16_48 = { bf16_48_dot, bf16_48_unpack, 1536, MLXR_ROWS_HALF };

MLXR_OUTLINE void finish(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { 0 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

// bf16 matrices of 240 columns: panels of 7680 bytes.
MLXR_OUTLINE void bf16_240_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
#if defined(MLXR_AMX)
    if (m >= MLXR_BF16_FROM) {
        float_panel_columns(MLXR_BF16, panel, 240, valid, x, m, y);
        return;
    }
#elif defined(MLXR_BF16_MATMUL)
    if (m >= MLXR_BF16_FROM) {
        const size_t x_bytes = mlxr_row_bytes(MLXR_ROWS_BF16, 240);
        for (int i = 0; i < m; i += 12, x += 12 * x_bytes)
            MLXR_BY_12_ROWS(m - i, float_panel_pairs(MLXR_BF16, panel, 240, valid, x, x_bytes, MLXR_M, y + i))
        return;
    }
#endif
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 240) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_BF16, panel, 240, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void bf16_240_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    float_panel_bf16(MLXR_BF16, panel, 240, valid, k0, k1, (uint16_t *)dst);
    return;
#endif
    float_panel_f32(MLXR_BF16, panel, 240, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix bf16_240 = { bf16_240_dot, bf16_240_unpack, 7680, MLXR_ROWS_HALF };

MLXR_OUTLINE void finish_residual(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .residual = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

MLXR_OUTLINE void finish_silu(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .activation = MLXR_SILU, .gated = 1 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

// bf16 matrices of 88 columns: panels of 2816 bytes.
MLXR_OUTLINE void bf16_88_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
#if defined(MLXR_AMX)
    if (m >= MLXR_BF16_FROM) {
        float_panel_columns(MLXR_BF16, panel, 88, valid, x, m, y);
        return;
    }
#elif defined(MLXR_BF16_MATMUL)
    if (m >= MLXR_BF16_FROM) {
        const size_t x_bytes = mlxr_row_bytes(MLXR_ROWS_BF16, 88);
        for (int i = 0; i < m; i += 12, x += 12 * x_bytes)
            MLXR_BY_12_ROWS(m - i, float_panel_pairs(MLXR_BF16, panel, 88, valid, x, x_bytes, MLXR_M, y + i))
        return;
    }
#endif
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 88) / 4;
    for (int i = 0; i < m; i += 12, rows += 12 * stride)
        MLXR_BY_12_ROWS(m - i, float_panel_dot(MLXR_BF16, panel, 88, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void bf16_88_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    float_panel_bf16(MLXR_BF16, panel, 88, valid, k0, k1, (uint16_t *)dst);
    return;
#endif
    float_panel_f32(MLXR_BF16, panel, 88, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix bf16_88 = { bf16_88_dot, bf16_88_unpack, 2816, MLXR_ROWS_HALF };

