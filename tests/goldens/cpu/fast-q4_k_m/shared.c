// q4_k matrices of 256 columns: panels of 2304 bytes.
MLXR_OUTLINE void q4_k_256_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        mlxr_act a[8];
        for (int j = 0; j < 8; j++) a[j] = mlxr_act_at(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_I8, 256), 256);
        MLXR_BY_8_ROWS(m - i, q4_k_dot(panel, 256, a, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q4_k_256_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    q4_k_panel_bf16(panel, 256, k0, k1, (uint16_t *)dst);
    return;
#endif
    q4_k_panel_f32(panel, 256, k0, k1, (float *)dst);
}

static const mlxr_matrix q4_k_256 = { q4_k_256_dot, q4_k_256_unpack, 2304, MLXR_ROWS_I8 };

// q6_k matrices of 256 columns: panels of 3360 bytes.
MLXR_OUTLINE void q6_k_256_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        mlxr_act a[8];
        for (int j = 0; j < 8; j++) a[j] = mlxr_act_at(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_I8, 256), 256);
        MLXR_BY_8_ROWS(m - i, q6_k_dot(panel, 256, a, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q6_k_256_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    q6_k_panel_bf16(panel, 256, k0, k1, (uint16_t *)dst);
    return;
#endif
    q6_k_panel_f32(panel, 256, k0, k1, (float *)dst);
}

static const mlxr_matrix q6_k_256 = { q6_k_256_dot, q6_k_256_unpack, 3360, MLXR_ROWS_I8 };

MLXR_OUTLINE void finish(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { 0 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

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

// q5_k matrices of 512 columns: panels of 5632 bytes.
MLXR_OUTLINE void q5_k_512_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        mlxr_act a[8];
        for (int j = 0; j < 8; j++) a[j] = mlxr_act_at(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_I8, 512), 512);
        MLXR_BY_8_ROWS(m - i, q5_k_dot(panel, 512, a, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q5_k_512_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    q5_k_panel_bf16(panel, 512, k0, k1, (uint16_t *)dst);
    return;
#endif
    q5_k_panel_f32(panel, 512, k0, k1, (float *)dst);
}

static const mlxr_matrix q5_k_512 = { q5_k_512_dot, q5_k_512_unpack, 5632, MLXR_ROWS_I8 };

