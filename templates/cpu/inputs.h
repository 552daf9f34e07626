// Inputs of projections, in the form that the dot products want: normed, gathered, quantised or rounded.
//
// Each thread prepares a single row for itself, in its scratch: that costs less than waiting for another. Several rows
// are shared by the threads; they lie in the shared scratch, and the caller puts a barrier before their first use.
#define MLXR_OUTLINE static __attribute__((noinline, unused))

enum { MLXR_ROWS_I8, MLXR_ROWS_F32, MLXR_ROWS_BF16, MLXR_FORMS };

// From one row to the next. f32 and bf16 rows end in zeros; then f32 rows have the sum of each 16 numbers. They take an
// odd number of cache lines, so that a column of a tile does not fall into one set of the cache. Quantised rows are whole
// blocks.
#define mlxr_row_bytes(form, K)                                                                                      \
    ((form) == MLXR_ROWS_I8    ? mlxr_act_bytes(K)                                                                   \
     : (form) == MLXR_ROWS_F32 ? ((size_t)(K) + 31) / 32 * 128 + (((size_t)(K) + 255) / 256 | 1) * 64                \
                               : ((size_t)(K) + 31) / 32 * 64 + 64 + ((size_t)(K) + 31) / 32 % 2 * 64)

// A row in f32 on its way to another form.
#define mlxr_row_floats(K) (((size_t)(K) + 31) / 32 * 32)

// What a block adds to rows of x: (x + factor * norm(added)) * scale. With a `second` result, it is norm(added) by
// `own_norm` and norm(second) by `second_norm`, together. `second`, `scale`, and `stream`, where the sums go, may be NULL.
typedef struct {
    const float *added, *norm, *own_norm, *second, *second_norm, *scale;
    float *stream;
    float eps, factor;
} mlxr_added;

// Rows of x: `rows` of them, those that `gather` names if it is not NULL. With an `eps` above 0 they go through RMSNorm, or
// through LayerNorm if `layer`, with weights `norm` and a `norm_bias` if these are not NULL.
typedef struct {
    const float *x, *norm, *norm_bias;
    const int32_t *gather;
    int heads, of_head, of_token;  // with `heads`, rows are parts of tokens', head after head, so many columns apart in x
    int rows, columns, layer;
    float eps;
    const mlxr_added *added;  // NULL: nothing
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

// n numbers from p on as vectors: f32_load_at(p, k, n) is that of lane k, with zeros past the end.
MLXR_INLINE f32v f32_load_at(const float *p, int k, int n) {
    return n - k >= MLXR_LANES ? f32_load(p + k) : f32_load_part(p + k, n - k);
}

MLXR_INLINE void f32_store_at(float *p, int k, int n, f32v v) {
    if (n - k >= MLXR_LANES) f32_store(p + k, v);
    else f32_store_part(p + k, v, n - k);
}

// The sum of (x - shift)^power over n numbers; power 1 (without a shift) or 2.
MLXR_INLINE float mlxr_power_sum(const float *x, int n, float shift, int power) {
    const int whole = n / MLXR_LANES * MLXR_LANES;
    f32v sums[4] = {f32_zero(), f32_zero(), f32_zero(), f32_zero()};
    int k = 0;
    for (; k + 4 * MLXR_LANES <= whole; k += 4 * MLXR_LANES)
        MLXR_UNROLL for (int i = 0; i < 4; i++) {
            f32v v = f32_load(x + k + i * MLXR_LANES) - shift;
            sums[i] = power == 2 ? f32_fma(v, v, sums[i]) : sums[i] + v;
        }
    for (; k < whole; k += MLXR_LANES) {
        f32v v = f32_load(x + k) - shift;
        sums[0] = power == 2 ? f32_fma(v, v, sums[0]) : sums[0] + v;
    }
    float rest = 0.0f;
    for (; k < n; k++) {
        const float v = x[k] - shift;
        rest = power == 2 ? f32_fma_one(v, v, rest) : rest + v;
    }
    return f32_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

// What a norm takes off n numbers, and what it multiplies them by: 0 and 1 / sqrt(mean(x^2) + eps), or, if `layer`, the
// mean and 1 / sqrt(variance + eps).
typedef struct {
    float mean, scale;
} mlxr_moments;

MLXR_INLINE mlxr_moments mlxr_moments_of(const float *x, int n, int layer, float eps) {
    const float mean = layer ? mlxr_power_sum(x, n, 0.0f, 1) / (float)n : 0.0f;
    const float square = layer ? mlxr_power_sum(x, n, mean, 2) : mlxr_power_sum(x, n, 0.0f, 2);
    return (mlxr_moments){mean, 1.0f / __builtin_sqrtf(square / (float)n + eps)};
}

// y = x or its norm, then zeros up to mlxr_row_floats(K).
MLXR_OUTLINE void mlxr_norm_row(const float *x, const mlxr_input *in, float *y) {
    const int K = in->columns;
    const float *norm = in->norm, *bias = in->norm_bias;
    mlxr_moments m = {0.0f, 1.0f};
    if (in->eps > 0.0f) m = in->layer ? mlxr_moments_of(x, K, 1, in->eps) : mlxr_moments_of(x, K, 0, in->eps);
    const f32v mean = f32_set1(m.mean), scale = f32_set1(m.scale);
    for (int k = 0; k < K; k += MLXR_LANES) {
        f32v v = f32_load_at(x, k, K);
        if (in->eps > 0.0f) v = (v - mean) * scale;
        if (norm) v *= f32_load_at(norm, k, K);
        if (bias) v += f32_load_at(bias, k, K);
        f32_store(y + k, v);
    }
    for (int k = (K + MLXR_LANES - 1) / MLXR_LANES * MLXR_LANES; k < (int)mlxr_row_floats(K); k += MLXR_LANES)
        f32_store(y + k, f32_zero());
}

// y = factor * norm(x) * weight, added to `to` if that is not NULL. y may be x, or `to`.
MLXR_INLINE void mlxr_add_norm(const float *x, const float *weight, int K, float eps, float factor, const float *to,
                               float *y) {
    const f32v scale = f32_set1(factor * mlxr_moments_of(x, K, 0, eps).scale);
    for (int k = 0; k < K; k += MLXR_LANES) {
        f32v v = f32_load_at(x, k, K) * scale * f32_load_at(weight, k, K);
        if (to) v += f32_load_at(to, k, K);
        f32_store_at(y, k, K, v);
    }
}

// The row of x that begins at `at`, with what a block adds to it, in y. If `stores`, it is also stored.
MLXR_OUTLINE void mlxr_added_row(const float *x, const mlxr_added *a, size_t at, int K, int stores, float *y) {
    const float *block = a->added + at;
    if (a->second) {
        mlxr_add_norm(block, a->own_norm, K, a->eps, 1.0f, NULL, y);
        mlxr_add_norm(a->second + at, a->second_norm, K, a->eps, 1.0f, y, y);
        block = y;
    }
    mlxr_add_norm(block, a->norm, K, a->eps, a->factor, x + at, y);
    if (a->scale) {
        const float scale = a->scale[0];  // read once: for all that C knows, y is where it lies
        for (int k = 0; k < K; k++) y[k] *= scale;
    }
    if (stores && a->stream) memcpy(a->stream + at, y, (size_t)K * 4);
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

// sums[i]: the sum of the i-th 16 of mlxr_row_floats(K) numbers.
MLXR_INLINE void mlxr_sum_sixteens(const float *x, int K, float *sums) {
    for (int k = 0; k < (int)mlxr_row_floats(K); k += 16) {
        f32v sum = f32_load(x + k);
        MLXR_UNROLL for (int c = MLXR_LANES; c < 16; c += MLXR_LANES) sum += f32_load(x + k + c);
        sums[k / 16] = f32_sum(sum);
    }
}

// Prepares the rows in `form` and returns where they are. If `alone`, this thread makes all of them in `own`; else it
// makes its part of them in `shared`. `sums`: whether rows of f32 get their sums, which tiles do not read. `row`:
// mlxr_row_floats floats of this thread.
MLXR_OUTLINE const uint8_t *mlxr_inputs(const mlxr_worker *w, const mlxr_input *in, int form, int alone, int sums,
                                        float *row, uint8_t *own, uint8_t *shared) {
    const int K = in->columns;
    const size_t bytes = mlxr_row_bytes(form, K);
    uint8_t *to = alone ? own : shared;
    int first = 0, last = in->rows;
    if (!alone) mlxr_share(w, in->rows, &first, &last);
    for (int r = first; r < last; r++) {
        const float *x = in->x + (size_t)(in->gather ? in->gather[r] : r) * (size_t)K;
        if (in->heads) {
            const int tokens = in->rows / in->heads;
            x = in->x + (size_t)(r % tokens) * (size_t)in->of_token + (size_t)(r / tokens) * (size_t)in->of_head;
        }
        uint8_t *dst = to + (size_t)r * bytes;
        float *floats = form == MLXR_ROWS_F32 ? (float *)dst : row;
        if (in->added) {
            mlxr_added_row(in->x, in->added, (size_t)(x - in->x), K, !alone || w->tid == 0, floats);
            x = floats;
        }
        mlxr_norm_row(x, in, floats);
        if (form == MLXR_ROWS_F32 && sums) mlxr_sum_sixteens((const float *)dst, K, (float *)dst + mlxr_row_floats(K));
        if (form == MLXR_ROWS_I8) mlxr_quantise(row, K, dst);
        if (form == MLXR_ROWS_BF16) mlxr_bf16_row(row, K, dst);
    }
    return to;
}
