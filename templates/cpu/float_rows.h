// Weights in plain rows of f32, f16 or bf16: dot products with f32 rows, and panels of 16 rows for the matmuls.
//
// Rows lie as the file has them, one after the other at any even address. A panel is 16 of them; the last one of a
// matrix may have fewer (`valid`). Unpacked to bf16, a lane holds the pair of columns (k, k + 1), as matrix tiles take
// them.
enum { MLXR_F32, MLXR_F16, MLXR_BF16 };
#define mlxr_float_bytes(format) ((format) == MLXR_F32 ? 4 : 2)

// MLXR_LANES numbers as f32.
MLXR_INLINE f32v float_load(int format, const uint8_t *p) {
    return format == MLXR_F32 ? f32_load((const float *)p) : format == MLXR_F16 ? f16_load(p) : bf16_load(p);
}

// The first n of them, then zeros. Nothing past them is read.
MLXR_INLINE f32v float_load_part(int format, const uint8_t *p, int n) {
    uint8_t numbers[4 * MLXR_LANES] = {0};
    memcpy(numbers, p, (size_t)(n * mlxr_float_bytes(format)));
    return float_load(format, numbers);
}

#if defined(MLXR_AVX512)
// rows[i] lane j to rows[j] lane i.
MLXR_INLINE void transpose16(__m512i rows[16]) {
    __m512i t[16];
    MLXR_UNROLL for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    MLXR_UNROLL for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Now rows[4 a + b] holds, in its quarter q, lane 4 q + b of rows 4 a to 4 a + 3.
    MLXR_UNROLL for (int b = 0; b < 4; b++) {
        __m512i even01 = _mm512_shuffle_i32x4(rows[b], rows[4 + b], 0x88);
        __m512i odd01 = _mm512_shuffle_i32x4(rows[b], rows[4 + b], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(rows[8 + b], rows[12 + b], 0x88);
        __m512i odd23 = _mm512_shuffle_i32x4(rows[8 + b], rows[12 + b], 0xdd);
        t[b] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        t[8 + b] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        t[4 + b] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        t[12 + b] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
    MLXR_UNROLL for (int i = 0; i < 16; i++) rows[i] = t[i];
}
#endif

// acc[row of w][row of x] += MLXR_LANES columns of R rows, of which n are there, times those of m rows of f32.
MLXR_INLINE void float_dot_lanes(int format, const uint8_t *w, int row_bytes, int R, int n, const float *x, int stride,
                                 int m, f32v acc[8][12]) {
    f32v v[8];
    MLXR_UNROLL for (int j = 0; j < R; j++) {
        const uint8_t *p = w + j * row_bytes;
        v[j] = n < MLXR_LANES ? float_load_part(format, p, n) : float_load(format, p);
    }
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        f32v u = f32_load(x + i * stride);
        MLXR_UNROLL for (int j = 0; j < R; j++) acc[j][i] = f32_fma(v[j], u, acc[j][i]);
    }
}

// sums[row of x][row of w] += columns [k0, k1) of R rows times those of m rows of f32, by lanes; from zero if k0 is 0. R
// and m are literals. A lane's sum is one chain over the columns whatever R and m are, so that a row's products do not
// depend on the rows beside it. k1 is K or a multiple of 32. x: `stride` floats from one row to the next, zeros after the
// K-th up to a whole vector.
MLXR_INLINE void float_dot(int format, const uint8_t *w, int K, int k0, int k1, int R, const float *x, int stride, int m,
                           float (*sums)[16][MLXR_LANES]) {
    const int bytes = mlxr_float_bytes(format), row_bytes = K * bytes, line = 64 / bytes;
    // One row: what comes next is ahead in it. Several: the same column of the rows after these.
    const int ahead = R == 1 ? 2048 : R * row_bytes;
    f32v acc[8][12];
    MLXR_UNROLL for (int j = 0; j < R; j++)
        MLXR_UNROLL for (int i = 0; i < m; i++) acc[j][i] = k0 ? f32_load(sums[i][j]) : f32_zero();
    int k = k0;
    for (; k + line <= k1; k += line) {
        MLXR_UNROLL for (int j = 0; j < R; j++) __builtin_prefetch(w + j * row_bytes + k * bytes + ahead, 0, 2);
        MLXR_UNROLL for (int c = 0; c < line; c += MLXR_LANES)
            float_dot_lanes(format, w + (k + c) * bytes, row_bytes, R, MLXR_LANES, x + k + c, stride, m, acc);
    }
    for (; k + MLXR_LANES <= k1; k += MLXR_LANES)
        float_dot_lanes(format, w + k * bytes, row_bytes, R, MLXR_LANES, x + k, stride, m, acc);
    if (k < k1) float_dot_lanes(format, w + k * bytes, row_bytes, R, k1 - k, x + k, stride, m, acc);
    MLXR_UNROLL for (int j = 0; j < R; j++)
        MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(sums[i][j], acc[j][i]);
}

// Columns that several rows of f32 go over at a time, so that they stay in the first level cache.
#define MLXR_DOT_COLUMNS 640

// y[i][lane] = the sum of the lanes of m rows' products with row `lane` of a panel; 0 of those past the last one.
MLXR_INLINE void float_panel_sums(float (*sums)[16][MLXR_LANES], int valid, int m, float (*y)[16]) {
    for (int i = 0; i < m; i++) {
        if (valid < 16) memset(sums[i][valid], 0, sizeof sums[i][0] * (size_t)(16 - valid));
        MLXR_UNROLL for (int p = 0; p < 16; p += MLXR_LANES) {
            f32v v[MLXR_LANES];
            MLXR_UNROLL for (int j = 0; j < MLXR_LANES; j++) v[j] = f32_load(sums[i][p + j]);
            f32_store(y[i] + p, f32_sums(v));
        }
    }
}

// y[i][lane] = the dot product of row `lane` of a panel and row i of x. m, 1 to 12, is a literal.
MLXR_INLINE void float_panel_dot(int format, const uint8_t *w, int K, int valid, const float *x, int stride, int m,
                                 float (*y)[16]) {
    const int R = m <= 2 || (m <= 4 && MLXR_LANES == 16) ? 4 : m <= 4 || MLXR_LANES == 16 ? 2 : 1;
    const int row_bytes = K * mlxr_float_bytes(format), step = m > 4 ? MLXR_DOT_COLUMNS : K;
    float sums[12][16][MLXR_LANES];
    for (int k0 = 0; k0 < K; k0 += step) {
        const int k1 = K - k0 < step ? K : k0 + step;
        int row = 0;
        for (; row + R <= valid; row += R)
            float_dot(format, w + (size_t)row * row_bytes, K, k0, k1, R, x, stride, m,
                      (float(*)[16][MLXR_LANES])sums[0][row]);
        for (; row < valid; row++)
            float_dot(format, w + (size_t)row * row_bytes, K, k0, k1, 1, x, stride, m,
                      (float(*)[16][MLXR_LANES])sums[0][row]);
    }
    float_panel_sums(sums, valid, m, y);
}

// Columns [k0, k1) of a panel as f32: dst[k - k0][16].
MLXR_INLINE void float_panel_f32(int format, const uint8_t *w, int K, int valid, int k0, int k1, float *dst) {
    const int bytes = mlxr_float_bytes(format);
    for (int k = k0; k < k1; k += MLXR_LANES) {
        const int n = k1 - k < MLXR_LANES ? k1 - k : MLXR_LANES;
        f32v v[16];
        MLXR_UNROLL for (int i = 0; i < 16; i++) {
            const uint8_t *p = w + ((size_t)i * K + k) * bytes;
            v[i] = i >= valid ? f32_zero() : n < MLXR_LANES ? float_load_part(format, p, n) : float_load(format, p);
        }
        float *to = dst + (size_t)(k - k0) * 16;
#if defined(MLXR_AVX512)
        transpose16((__m512i *)v);
        for (int j = 0; j < n; j++) f32_store(to + j * 16, v[j]);
#else
        float numbers[16][MLXR_LANES];
        for (int i = 0; i < 16; i++) f32_store(numbers[i], v[i]);
        for (int j = 0; j < n; j++)
            for (int i = 0; i < 16; i++) to[j * 16 + i] = numbers[i][j];
#endif
    }
}

#if defined(MLXR_AVX512)
// 32 numbers of a row as bf16, n of them there.
MLXR_INLINE __m512i float_pairs(int format, const uint8_t *p, int n) {
    uint8_t numbers[128] = {0};
    if (n < 32) {
        memcpy(numbers, p, (size_t)(n * mlxr_float_bytes(format)));
        p = numbers;
    }
    if (format == MLXR_BF16) return _mm512_loadu_si512(p);
    f32v low = float_load(format, p), high = float_load(format, p + 16 * mlxr_float_bytes(format));
#if defined(__AVX512BF16__)
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    __m512i both;
    bf16_store(&both, low);
    bf16_store((uint8_t *)&both + 32, high);
    return both;
#endif
}

// Columns [k0, k1) of a panel as bf16, rounded to nearest even: dst[(k - k0) / 2][16][2]. k0 is a multiple of 32;
// columns past K, up to a k1 that is a multiple of 32, are zeros.
MLXR_INLINE void float_panel_bf16(int format, const uint8_t *w, int K, int valid, int k0, int k1, uint16_t *dst) {
    for (int k = k0; k < k1; k += 32, dst += 512) {
        const int n = K - k < 32 ? K - k : 32;
        __m512i v[16];
        MLXR_UNROLL for (int i = 0; i < 16; i++)
            v[i] = i < valid ? float_pairs(format, w + ((size_t)i * K + k) * mlxr_float_bytes(format), n)
                             : _mm512_setzero_si512();
        transpose16(v);
        MLXR_UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + i * 32, v[i]);
    }
}
#endif

// A row as f32.
MLXR_INLINE void float_row(int format, const uint8_t *p, int K, float *to) {
    int k = 0;
    for (; k + MLXR_LANES <= K; k += MLXR_LANES) f32_store(to + k, float_load(format, p + k * mlxr_float_bytes(format)));
    if (k < K) f32_store_part(to + k, float_load_part(format, p + k * mlxr_float_bytes(format), K - k), K - k);
}
