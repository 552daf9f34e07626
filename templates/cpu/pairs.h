// Rows of f16 or bf16 weights, read as they lie, times some rows of bf16 in vectors, a pair of columns in a lane at a
// time: half the instructions of f32, for CPUs that have products of bf16 and no matrix tiles.
#if defined(MLXR_BF16_MATMUL) && !defined(MLXR_AMX)
// Columns that several rows of bf16 go over at a time, so that they stay in the first level cache.
#define MLXR_PAIR_COLUMNS 1280

// acc[row of w][row of x] += 32 columns of R rows, of which n are there, times those of m rows of bf16.
MLXR_INLINE void pairs_dot_lanes(int format, const uint8_t *w, int row_bytes, int R, int n, const uint8_t *x, size_t stride,
                                 int m, __m512 acc[4][12]) {
    __m512i v[4];
    MLXR_UNROLL for (int j = 0; j < R; j++) v[j] = float_pairs(format, w + j * row_bytes, n);
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        const __m512i u = _mm512_loadu_si512(x + (size_t)i * stride);
        MLXR_UNROLL for (int j = 0; j < R; j++) acc[j][i] = _mm512_dpbf16_ps(acc[j][i], (__m512bh)v[j], (__m512bh)u);
    }
}

// As float_dot, of rows of bf16 that are `stride` bytes apart and end in zeros.
MLXR_INLINE void pairs_dot(int format, const uint8_t *w, int K, int k0, int k1, int R, const uint8_t *x, size_t stride,
                           int m, float (*sums)[16][MLXR_LANES]) {
    const int row_bytes = K * 2;
    __m512 acc[4][12];
    MLXR_UNROLL for (int j = 0; j < R; j++)
        MLXR_UNROLL for (int i = 0; i < m; i++) acc[j][i] = k0 ? (__m512)f32_load(sums[i][j]) : _mm512_setzero_ps();
    int k = k0;
    for (; k + 32 <= k1; k += 32) {
        MLXR_UNROLL for (int j = 0; j < R; j++) __builtin_prefetch(w + j * row_bytes + 2 * k + R * row_bytes, 0, 2);
        pairs_dot_lanes(format, w + 2 * k, row_bytes, R, 32, x + 2 * k, stride, m, acc);
    }
    if (k < k1) pairs_dot_lanes(format, w + 2 * k, row_bytes, R, k1 - k, x + 2 * k, stride, m, acc);
    MLXR_UNROLL for (int j = 0; j < R; j++)
        MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(sums[i][j], (f32v)acc[j][i]);
}

// As float_panel_dot, of rows of bf16.
MLXR_INLINE void float_panel_pairs(int format, const uint8_t *w, int K, int valid, const uint8_t *x, size_t stride, int m,
                                   float (*y)[16]) {
    const int R = m <= 4 ? 4 : 2;
    const size_t row_bytes = (size_t)K * 2;
    float sums[12][16][MLXR_LANES];
    for (int k0 = 0; k0 < K; k0 += MLXR_PAIR_COLUMNS) {
        const int k1 = K - k0 < MLXR_PAIR_COLUMNS ? K : k0 + MLXR_PAIR_COLUMNS;
        int row = 0;
        for (; row + R <= valid; row += R)
            pairs_dot(format, w + (size_t)row * row_bytes, K, k0, k1, R, x, stride, m,
                      (float(*)[16][MLXR_LANES])sums[0][row]);
        for (; row < valid; row++)
            pairs_dot(format, w + (size_t)row * row_bytes, K, k0, k1, 1, x, stride, m,
                      (float(*)[16][MLXR_LANES])sums[0][row]);
    }
    float_panel_sums(sums, valid, m, y);
}
#endif
