// q4_k matrices of 256 columns, exact: panels of 2304 bytes.
MLXR_OUTLINE void q4_k_256_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        const float *rows[8], *totals[8];
        for (int j = 0; j < 8; j++) {
            rows[j] = (const float *)(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_F32, 256));
            totals[j] = rows[j] + mlxr_row_floats(256);
        }
        MLXR_BY_8_ROWS(m - i, q4_k_dot_exact(panel, 256, rows, totals, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q4_k_256_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    q4_k_panel_f32(panel, 256, k0, k1, (float *)dst);
}

static const mlxr_matrix q4_k_256_exact = { q4_k_256_exact_dot, q4_k_256_exact_unpack, 2304, MLXR_ROWS_F32 };

// q6_k matrices of 256 columns, exact: panels of 3360 bytes.
MLXR_OUTLINE void q6_k_256_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        const float *rows[8], *totals[8];
        for (int j = 0; j < 8; j++) {
            rows[j] = (const float *)(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_F32, 256));
            totals[j] = rows[j] + mlxr_row_floats(256);
        }
        MLXR_BY_8_ROWS(m - i, q6_k_dot_exact(panel, 256, rows, totals, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q6_k_256_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    q6_k_panel_f32(panel, 256, k0, k1, (float *)dst);
}

static const mlxr_matrix q6_k_256_exact = { q6_k_256_exact_dot, q6_k_256_exact_unpack, 3360, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish_bias(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { .bias = 1 };
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

// q5_k matrices of 512 columns, exact: panels of 5632 bytes.
MLXR_OUTLINE void q5_k_512_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        const float *rows[8], *totals[8];
        for (int j = 0; j < 8; j++) {
            rows[j] = (const float *)(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_F32, 512));
            totals[j] = rows[j] + mlxr_row_floats(512);
        }
        MLXR_BY_8_ROWS(m - i, q5_k_dot_exact(panel, 512, rows, totals, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q5_k_512_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    q5_k_panel_f32(panel, 512, k0, k1, (float *)dst);
}

static const mlxr_matrix q5_k_512_exact = { q5_k_512_exact_dot, q5_k_512_exact_unpack, 5632, MLXR_ROWS_F32 };

// q4_k matrices of 512 columns, exact: panels of 4608 bytes.
MLXR_OUTLINE void q4_k_512_exact_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
    for (int i = 0; i < m; i += 8) {
        const float *rows[8], *totals[8];
        for (int j = 0; j < 8; j++) {
            rows[j] = (const float *)(x + (i + j) * mlxr_row_bytes(MLXR_ROWS_F32, 512));
            totals[j] = rows[j] + mlxr_row_floats(512);
        }
        MLXR_BY_8_ROWS(m - i, q4_k_dot_exact(panel, 512, rows, totals, MLXR_M, y + i))
    }
}

MLXR_OUTLINE void q4_k_512_exact_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
    q4_k_panel_f32(panel, 512, k0, k1, (float *)dst);
}

static const mlxr_matrix q4_k_512_exact = { q4_k_512_exact_dot, q4_k_512_exact_unpack, 4608, MLXR_ROWS_F32 };

MLXR_OUTLINE void finish(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    const mlxr_epilogue steps = { 0 };
    mlxr_finish_rows(steps, out, row, count, column, valid, y, u);
}

