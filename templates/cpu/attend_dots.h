// Attention of a tile of queries to rows of latents by dot products of bf16 pairs, on machines that have these but no
// matrix tiles: twice the arithmetic of f32, and the same factors and layouts as with tiles (attend_tiles.h). Rows of
// latents are long, and all heads' queries multiply them: that is most of a long prompt's time.
#if !defined(MLXR_AMX) && defined(MLXR_AVX512) && defined(__AVX512BF16__)
#define MLXR_ATTEND_DOTS 1

// c[16][16 * parts] += or, if `fresh`, = a b: over `steps` tiles of 32 elements, 16 rows of left tiles and of right tiles
// the columns, the second 16 of them `b_next` bytes after the first. Rows of c are c_row floats apart, rows of a a_row
// bytes; from one step to the next are a_step and b_step bytes.
MLXR_INLINE void dots_product(float *c, size_t c_row, int fresh, const uint8_t *a, size_t a_row, size_t a_step,
                              const uint8_t *b, size_t b_step, size_t b_next, int steps, int parts) {
    for (int half = 0; half < 2; half++, a += 8 * a_row, c += 8 * c_row) {
        __m512 sums[8][2];
        MLXR_UNROLL
        for (int i = 0; i < 8; i++)
            MLXR_UNROLL
            for (int v = 0; v < parts; v++)
                sums[i][v] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + (size_t)i * c_row + 16 * v);
        for (int s = 0; s < steps; s++) {
            const uint8_t *x = a + (size_t)s * a_step, *y = b + (size_t)s * b_step;
            for (int p = 0; p < 16; p++, x += 4, y += 64) {
                __m512bh columns[2];
                MLXR_UNROLL
                for (int v = 0; v < parts; v++) columns[v] = (__m512bh)_mm512_loadu_si512(y + b_next * (size_t)v);
                MLXR_UNROLL
                for (int i = 0; i < 8; i++) {
                    const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const i32_any *)(x + (size_t)i * a_row));
                    MLXR_UNROLL
                    for (int v = 0; v < parts; v++) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], pair, columns[v]);
                }
            }
        }
        MLXR_UNROLL
        for (int i = 0; i < 8; i++)
            MLXR_UNROLL
            for (int v = 0; v < parts; v++) _mm512_storeu_ps(c + (size_t)i * c_row + 16 * v, sums[i][v]);
    }
}
#endif
