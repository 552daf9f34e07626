// Attention of a tile of few queries, as in decode: the lanes are keys, and then elements of values, where attend.h has a
// query in each lane. Each number comes from the same steps in the same order, so that both ways give the same bits.
#define MLXR_FEW_QUERIES 8

// The lanes of MLXR_LANES vectors exchanged with the vectors.
MLXR_INLINE void f32_transpose(f32v *r) {
#if defined(MLXR_AVX512)
    i32_transpose((__m512i *)r);
#elif defined(MLXR_AVX2)
    __m256 s[8], t[8];
    MLXR_UNROLL
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
    }
    MLXR_UNROLL
    for (int i = 0; i < 8; i += 4)
        MLXR_UNROLL
        for (int j = 0; j < 2; j++) {
            t[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0x44);
            t[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0xee);
        }
    MLXR_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = (f32v)_mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = (f32v)_mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
#else
    f32v a = MLXR_FOUR_OF(r[0], r[1], 0, 4, 1, 5), b = MLXR_FOUR_OF(r[2], r[3], 0, 4, 1, 5);
    f32v c = MLXR_FOUR_OF(r[0], r[1], 2, 6, 3, 7), d = MLXR_FOUR_OF(r[2], r[3], 2, 6, 3, 7);
    r[0] = MLXR_FOUR_OF(a, b, 0, 1, 4, 5);
    r[1] = MLXR_FOUR_OF(a, b, 2, 3, 6, 7);
    r[2] = MLXR_FOUR_OF(c, d, 0, 1, 4, 5);
    r[3] = MLXR_FOUR_OF(c, d, 2, 3, 6, 7);
#endif
}

// The rows at rows + offsets[j], j < count rounded up to vectors, as columns: to[element][key], rows of `stride`.
MLXR_INLINE void attend_turned(float *to, int stride, const uint8_t *rows, const size_t *offsets, int count, int type,
                               int head_dim) {
    for (int j = 0; j < count; j += MLXR_LANES) {
        float scales[MLXR_LANES];
        MLXR_UNROLL
        for (int i = 0; i < MLXR_LANES; i++) scales[i] = cache_scale(rows + offsets[j + i], type, head_dim);
        for (int c = 0; c < head_dim; c += MLXR_LANES) {
            f32v r[MLXR_LANES];
            MLXR_UNROLL
            for (int i = 0; i < MLXR_LANES; i++) {
                r[i] = cache_vector_at(rows + offsets[j + i], c, type, head_dim);
                if (type == MLXR_CACHE_Q8) r[i] *= scales[i];
            }
            f32_transpose(r);
            MLXR_UNROLL
            for (int i = 0; i < MLXR_LANES; i++) f32_store(to + (size_t)(c + i) * stride + j, r[i]);
        }
    }
}

// c[i][v] += sum over k < depth of a[i][k] * b[k][v], from zero if `fresh`. Rows of a, b and c are as far apart as their
// names say. i < rows and `vectors` of v: small literals.
MLXR_INLINE void attend_rows_block(float *c, int c_row, int fresh, const float *a, int a_row, const float *b, int b_row,
                                   int depth, int rows, int vectors) {
    f32v sums[MLXR_PRODUCT_ROWS * MLXR_PRODUCT_VECTORS];
    MLXR_UNROLL
    for (int i = 0; i < rows; i++)
        MLXR_UNROLL
        for (int v = 0; v < vectors; v++)
            sums[i * vectors + v] = fresh ? f32_zero() : f32_load(c + i * c_row + v * MLXR_LANES);
    for (int k = 0; k < depth; k++)
        MLXR_UNROLL
        for (int v = 0; v < vectors; v++) {
            f32v x = f32_load(b + (size_t)k * b_row + v * MLXR_LANES);
            MLXR_UNROLL
            for (int i = 0; i < rows; i++)
                sums[i * vectors + v] = f32_fma(f32_set1(a[i * a_row + k]), x, sums[i * vectors + v]);
        }
    MLXR_UNROLL
    for (int i = 0; i < rows; i++)
        MLXR_UNROLL
        for (int v = 0; v < vectors; v++) f32_store(c + i * c_row + v * MLXR_LANES, sums[i * vectors + v]);
}

// The same for up to MLXR_FEW_QUERIES rows, with room for that many, and any multiple of MLXR_LANES columns.
MLXR_INLINE void attend_rows_product(float *c, int c_row, int fresh, const float *a, int a_row, const float *b, int b_row,
                                     int depth, int rows, int columns) {
    for (int i = 0; i < rows; i += MLXR_PRODUCT_ROWS) {
        float *to = c + i * c_row;
        const float *from = a + i * a_row;
        int v = 0;
#define MLXR_ROWS(n, vectors)                                                                  \
    if (mlxr_least(rows - i, MLXR_PRODUCT_ROWS) <= n) {                                        \
        attend_rows_block(to + v, c_row, fresh, from, a_row, b + v, b_row, depth, n, vectors); \
        continue;                                                                              \
    }
        for (; v + MLXR_PRODUCT_VECTORS * MLXR_LANES <= columns; v += MLXR_PRODUCT_VECTORS * MLXR_LANES) {
            MLXR_ROWS(1, MLXR_PRODUCT_VECTORS)
            MLXR_ROWS(2, MLXR_PRODUCT_VECTORS)
            MLXR_ROWS(4, MLXR_PRODUCT_VECTORS)
            MLXR_ROWS(MLXR_PRODUCT_ROWS, MLXR_PRODUCT_VECTORS)
        }
        for (; v < columns; v += MLXR_LANES) {
            MLXR_ROWS(1, 1)
            MLXR_ROWS(2, 1)
            MLXR_ROWS(4, 1)
            MLXR_ROWS(MLXR_PRODUCT_ROWS, 1)
        }
#undef MLXR_ROWS
    }
}

// Scores of one query become weights in place: those of keys [from, to) of a tile of `count` of them, zeros elsewhere, up
// to whole vectors. Returns what its values so far are to be multiplied by.
MLXR_INLINE float attend_softmax_row(float *scores, int from, int to, int count, float *maximum, float *sum) {
    const int end = (count + MLXR_LANES - 1) / MLXR_LANES * MLXR_LANES;
    for (int j = 0; j < from; j++) scores[j] = -__builtin_inff();
    for (int j = to; j < end; j++) scores[j] = -__builtin_inff();
    const float before = *maximum;
    f32v largest = f32_set1(before), totals = f32_zero();
    for (int j = 0; j < end; j += MLXR_LANES) largest = f32_max(largest, f32_load(scores + j));
    const float now = f32_greatest(largest);
    const f32v kept = f32_exp2_negative(f32_set1(before - now));
    for (int j = 0; j < end; j += MLXR_LANES) {
        f32v p = f32_exp2_negative(f32_load(scores + j) - now);
        f32_store(scores + j, p);
        totals += p;
    }
    float lanes[MLXR_LANES];
    f32_store(lanes, totals);
    MLXR_UNROLL
    for (int n = MLXR_LANES / 2; n > 0; n /= 2)
        MLXR_UNROLL
        for (int i = 0; i < n; i++) lanes[i] += lanes[i + n];
    *maximum = now;
    *sum = f32_fma(f32_set1(*sum), kept, f32_set1(lanes[0]))[0];
    return kept[0];
}
