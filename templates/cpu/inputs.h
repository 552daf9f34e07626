// Inputs of projections, in the form that the dot products want: normed, gathered, quantised or rounded.
//
// One row each thread prepares for itself, in its scratch: that costs less than waiting for another. Several rows the
// threads split; they lie in the shared scratch, and the caller puts a barrier before their first use.
#define MLXR_OUTLINE static __attribute__((noinline, unused))

enum { MLXR_ROWS_I8, MLXR_ROWS_F32, MLXR_ROWS_BF16, MLXR_FORMS };

// From one row to the next. f32 and bf16 rows end in zeros and an odd number of cache lines, so that a column of a tile
// does not fall into one set of the cache. Quantised rows are whole blocks.
#define mlxr_row_bytes(form, K)                                           \
    ((form) == MLXR_ROWS_I8    ? mlxr_act_bytes(K)                         \
     : (form) == MLXR_ROWS_F32 ? ((size_t)(K) + 31) / 32 * 128 + 64        \
                               : ((size_t)(K) + 31) / 32 * 64 + 64 + ((size_t)(K) + 31) / 32 % 2 * 64)

// A row in f32 on its way to another form.
#define mlxr_row_floats(K) (((size_t)(K) + 31) / 32 * 32)

// Rows of x: `rows` of them, those that `gather` names if it is not NULL, through RMSNorm if `norm` is not NULL.
typedef struct {
    const float *x, *norm;
    const int32_t *gather;
    int rows, columns;
    float eps;
} mlxr_input;

// The first n lanes of p, then zeros; the first n lanes to p.
MLXR_INLINE f32v f32_load_part(const float *p, int n) {
    float numbers[MLXR_LANES] = {0};
    memcpy(numbers, p, (size_t)n * 4);
    return f32_load(numbers);
}

MLXR_INLINE void f32_store_part(float *p, f32v v, int n) {
    float numbers[MLXR_LANES];
    f32_store(numbers, v);
    memcpy(p, numbers, (size_t)n * 4);
}

// y = x, or x / sqrt(mean(x^2) + eps) * norm, then zeros up to mlxr_row_floats(K).
MLXR_OUTLINE void mlxr_norm_row(const float *x, const float *norm, int K, float eps, float *y) {
    const int whole = K / MLXR_LANES * MLXR_LANES, rest = K - whole;
    f32v scale = f32_set1(1.0f);
    if (norm) {
        f32v squares[4] = {f32_zero(), f32_zero(), f32_zero(), f32_zero()};
        int k = 0;
        for (; k + 4 * MLXR_LANES <= whole; k += 4 * MLXR_LANES)
            MLXR_UNROLL for (int i = 0; i < 4; i++) {
                f32v v = f32_load(x + k + i * MLXR_LANES);
                squares[i] += v * v;
            }
        for (; k < K; k += MLXR_LANES) {
            f32v v = k < whole ? f32_load(x + k) : f32_load_part(x + k, rest);
            squares[0] += v * v;
        }
        float sum = f32_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
        scale = f32_set1(1.0f / __builtin_sqrtf(sum / (float)K + eps));
    }
    for (int k = 0; k < K; k += MLXR_LANES) {
        f32v v = k < whole ? f32_load(x + k) : f32_load_part(x + k, rest);
        if (norm) v = v * scale * (k < whole ? f32_load(norm + k) : f32_load_part(norm + k, rest));
        f32_store(y + k, v);
    }
    for (int k = (K + MLXR_LANES - 1) / MLXR_LANES * MLXR_LANES; k < (int)mlxr_row_floats(K); k += MLXR_LANES)
        f32_store(y + k, f32_zero());
}

// A row of mlxr_row_floats(K) numbers as bf16, rounded to nearest even.
MLXR_INLINE void mlxr_bf16_row(const float *x, int K, uint8_t *dst) {
#if defined(MLXR_AVX512) && defined(__AVX512BF16__)
    for (int k = 0; k < K; k += 32)
        _mm512_storeu_si512(dst + 2 * k, (__m512i)_mm512_cvtne2ps_pbh((__m512)f32_load(x + k + 16), (__m512)f32_load(x + k)));
#else
    for (int k = 0; k < (int)mlxr_row_floats(K); k += MLXR_LANES) bf16_store(dst + 2 * k, f32_load(x + k));
#endif
}

// Where the rows are, in `form`: a single one in `own`, several in `shared`. `row`: mlxr_row_floats floats of this thread.
MLXR_OUTLINE const uint8_t *mlxr_inputs(const mlxr_worker *w, const mlxr_input *in, int form, float *row, uint8_t *own,
                                        uint8_t *shared) {
    const int K = in->columns;
    const size_t bytes = mlxr_row_bytes(form, K);
    uint8_t *to = in->rows == 1 ? own : shared;
    int first = 0, last = 1;
    if (in->rows > 1) mlxr_share(w, in->rows, &first, &last);
    for (int r = first; r < last; r++) {
        const float *x = in->x + (size_t)(in->gather ? in->gather[r] : r) * (size_t)K;
        uint8_t *dst = to + (size_t)r * bytes;
        mlxr_norm_row(x, in->norm, K, in->eps, form == MLXR_ROWS_F32 ? (float *)dst : row);
        if (form == MLXR_ROWS_I8) mlxr_quantise(row, K, dst);
        if (form == MLXR_ROWS_BF16) mlxr_bf16_row(row, K, dst);
    }
    return to;
}
