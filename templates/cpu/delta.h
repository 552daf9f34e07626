// The gated delta rule (Yang, Kautz and Hatamizadeh 2024): of each head a state S [rows][columns], f32; rows are the
// elements of a key, columns those of a value.
//
// A token makes S' = g S + k (x) d with d = beta (v - S^T (g k)), and its result is S'^T q = S^T (g q) + (k.q) d. So what it
// needs of S, two sums over the rows, is read in one pass over S, and this pass can write what the token before did to
// S: a pass a token. Some columns of S go through all tokens before the next ones do, so that they stay in the
// innermost cache.

#define MLXR_DELTA_VECTORS 4
// Columns that go together.
#define MLXR_DELTA_COLUMNS (MLXR_DELTA_VECTORS * MLXR_LANES)
// Tokens whose keys and queries are prepared together.
#define MLXR_DELTA_TOKENS 32

// The numbers of a prepared token and head: k, g k, g q, each of `rows`, then g (of each row, or one), beta and k.q.
#define mlxr_delta_floats(rows) (((rows) * 4 + 2 + 15) / 16 * 16)

// What the heads of a layer have in common. All are literals.
typedef struct {
    int rows, columns;   // of a state
    int channels;        // whether each row has a decay of its own
    float eps;           // added to the sum of squares of a key and of a query
} mlxr_delta_shape;

// y = x / |x| * factor of n numbers, then the dot product of y and `with`, which may be NULL.
MLXR_INLINE float mlxr_delta_unit(const float *x, int n, float eps, float factor, const float *with, float *y) {
    const f32v scale = f32_set1(factor / __builtin_sqrtf(mlxr_power_sum(x, n, 0.0f, 2) + eps));
    f32v dot = f32_zero();
    for (int i = 0; i < n; i += MLXR_LANES) {
        const f32v v = f32_load_at(x, i, n) * scale;
        if (with) dot = f32_fma(v, f32_load_at(with, i, n), dot);
        f32_store_at(y, i, n, v);
    }
    return f32_sum(dot);
}

// e^(rate softplus(a)).
MLXR_INLINE float mlxr_delta_decay(float rate, float a) {
    const float softplus = a > 20.0f ? a : __builtin_log1pf(__builtin_expf(a));
    return __builtin_expf(rate * softplus);
}

// Prepares one token of a head. a, dt_bias: its decay's number, or one for each row.
MLXR_OUTLINE void mlxr_delta_prepare(const mlxr_delta_shape *of, const float *q, const float *k, const float *a,
                                     const float *dt_bias, float rate, float b, float *to) {
    const int n = of->rows;
    float *const gk = to + n, *const gq = gk + n, *const g = gq + n;
    mlxr_delta_unit(k, n, of->eps, 1.0f, NULL, to);
    const float kq = mlxr_delta_unit(q, n, of->eps, 1.0f / __builtin_sqrtf((float)n), to, gq);
    const int decays = of->channels ? n : 1;
    for (int i = 0; i < decays; i++) g[i] = mlxr_delta_decay(rate, a[i] + dt_bias[i]);
    for (int i = 0; i < n; i += MLXR_LANES) {
        const f32v decay = of->channels ? f32_load_at(g, i, n) : f32_set1(g[0]);
        f32_store_at(gk, i, n, f32_load_at(to, i, n) * decay);
        f32_store_at(gq, i, n, f32_load_at(gq, i, n) * decay);
    }
    g[decays] = 1.0f / (1.0f + __builtin_expf(-b));
    g[decays + 1] = kq;
}

// Some columns of a state: vector v of row i is at at + i * row + v * MLXR_LANES.
typedef struct {
    float *at;
    size_t row;
} mlxr_delta_block;

// A pass over `count` vectors of columns: with `writes`, writes what token `before` did, whose correction is d; with
// `reads`, sums what token `next` reads: S times g k and g q.
MLXR_INLINE void delta_pass(int count, int channels, int writes, int reads, int rows, const float *before,
                            const float *next, const mlxr_delta_block *from, const mlxr_delta_block *to, const f32v *d,
                            f32v *of_k, f32v *of_q) {
    MLXR_UNROLL for (int v = 0; v < count; v++) of_k[v] = of_q[v] = f32_zero();
    for (int i = 0; i < rows; i++) {
        f32v s[MLXR_DELTA_VECTORS];
        MLXR_UNROLL for (int v = 0; v < count; v++) s[v] = f32_load(from->at + i * from->row + v * MLXR_LANES);
        if (writes) {
            const float k = before[i], g = before[3 * rows + (channels ? i : 0)];
            MLXR_UNROLL for (int v = 0; v < count; v++) {
                s[v] = f32_fma(d[v], f32_set1(k), f32_rounded(s[v] * g));
                f32_store(to->at + i * to->row + v * MLXR_LANES, s[v]);
            }
        }
        if (reads) {
            const float k = next[rows + i], q = next[2 * rows + i];
            MLXR_UNROLL for (int v = 0; v < count; v++) {
                of_k[v] = f32_fma(s[v], f32_set1(k), of_k[v]);
                of_q[v] = f32_fma(s[v], f32_set1(q), of_q[v]);
            }
        }
    }
}

// n tokens of `count` vectors of columns, which are first in `from`, then in `to`. v, out: of the first token, and what lies
// between two tokens.
MLXR_INLINE void delta_tokens(int count, int channels, int rows, int n, const float *tokens, const float *v, size_t v_row,
                              float *out, size_t out_row, mlxr_delta_block from, mlxr_delta_block to) {
    const int floats = mlxr_delta_floats(rows), rest = rows * (channels ? 4 : 3) + !channels;
    f32v d[MLXR_DELTA_VECTORS] = { {0} }, of_k[MLXR_DELTA_VECTORS], of_q[MLXR_DELTA_VECTORS];
    delta_pass(count, channels, 0, 1, rows, tokens, tokens, &from, &to, d, of_k, of_q);
    for (int t = 0; t < n; t++, tokens += floats, v += v_row, out += out_row) {
        const float beta = tokens[rest], kq = tokens[rest + 1];
        MLXR_UNROLL for (int i = 0; i < count; i++) {
            d[i] = (f32_load(v + i * MLXR_LANES) - of_k[i]) * beta;
            f32_store(out + i * MLXR_LANES, f32_fma(d[i], f32_set1(kq), of_q[i]));
        }
        if (t < n - 1) delta_pass(count, channels, 1, 1, rows, tokens, tokens + floats, &from, &to, d, of_k, of_q);
        else delta_pass(count, channels, 1, 0, rows, tokens, tokens, &from, &to, d, of_k, of_q);
        from = to;
    }
}

// The same, where the columns may not be whole vectors: those go through memory that has room for whole ones.
MLXR_OUTLINE void mlxr_delta_tokens(const mlxr_delta_shape *of, int columns, int n, const float *tokens, const float *v,
                                    size_t v_row, float *out, size_t out_row, mlxr_delta_block from,
                                    mlxr_delta_block to) {
    const int rows = of->rows;
#define MLXR_DELTA(count)                                                                           \
    if (columns == count * MLXR_LANES) {                                                            \
        if (of->channels) delta_tokens(count, 1, rows, n, tokens, v, v_row, out, out_row, from, to); \
        else delta_tokens(count, 0, rows, n, tokens, v, v_row, out, out_row, from, to);              \
    }
    MLXR_DELTA(1)
    MLXR_DELTA(2)
    MLXR_DELTA(3)
    MLXR_DELTA(4)
#undef MLXR_DELTA
}

// Where a sequence's states are.
typedef struct {
    const float *read;            // of the first head; NULL: zeros
    float *slots;                 // of the first head, in slot 0
    size_t slot;                  // from a slot to the next
    const int32_t *table;         // the batch's row of the sequence
    int64_t columns;              // of the table
} mlxr_delta_states;

// The slot's state after the token that has `left` behind it, itself included, or NULL.
MLXR_INLINE float *mlxr_delta_slot(const mlxr_delta_states *states, int left) {
    return left < states->columns && states->table[left] >= 0 ? states->slots + (size_t)states->table[left] * states->slot
                                                              : NULL;
}

// `columns` columns from `first` on of head `head`, through n prepared tokens; `left` tokens of the sequence come after them.
// The state is in `kept` [rows][MLXR_DELTA_COLUMNS] before, unless `begins`, and after. v, out: of these columns.
MLXR_OUTLINE void mlxr_delta_columns(const mlxr_delta_shape *of, const mlxr_delta_states *states, int head, int first,
                                     int columns, int n, int left, int begins, const float *tokens, const float *v,
                                     size_t v_row, float *out, size_t out_row, float *kept) {
    static const float zeros[MLXR_DELTA_COLUMNS];
    const int whole = (columns + MLXR_LANES - 1) / MLXR_LANES * MLXR_LANES, padded = whole != columns;
    const size_t place = (size_t)head * (size_t)of->rows * (size_t)of->columns + (size_t)first;
    mlxr_delta_block from = {kept, MLXR_DELTA_COLUMNS};
    float values[MLXR_DELTA_COLUMNS], results[MLXR_DELTA_COLUMNS];
    if (begins && !states->read) from = (mlxr_delta_block){(float *)zeros, 0};
    else if (begins && !padded) from = (mlxr_delta_block){(float *)states->read + place, (size_t)of->columns};
    else if (begins)
        for (int i = 0; i < of->rows; i++)
            for (int c = 0; c < whole; c++)
                kept[i * MLXR_DELTA_COLUMNS + c] = c < columns ? states->read[place + (size_t)i * (size_t)of->columns + (size_t)c] : 0.0f;
    for (int t = 0; t < n;) {
        int end = padded ? t + 1 : n;
        for (int i = t; i < end; i++)
            if (mlxr_delta_slot(states, left + n - i)) end = i + 1;
        float *slot = mlxr_delta_slot(states, left + n - end + 1);
        mlxr_delta_block to = {kept, MLXR_DELTA_COLUMNS};
        const float *prepared = tokens + (size_t)t * mlxr_delta_floats(of->rows);
        if (padded) {
            for (int c = 0; c < whole; c++) values[c] = c < columns ? v[(size_t)t * v_row + (size_t)c] : 0.0f;
            mlxr_delta_tokens(of, whole, 1, prepared, values, 0, results, 0, from, to);
            memcpy(out + (size_t)t * out_row, results, (size_t)columns * 4);
            for (int i = 0; slot && i < of->rows; i++)
                memcpy(slot + place + (size_t)i * (size_t)of->columns, kept + i * MLXR_DELTA_COLUMNS, (size_t)columns * 4);
        } else {
            if (slot) to = (mlxr_delta_block){slot + place, (size_t)of->columns};
            mlxr_delta_tokens(of, whole, end - t, prepared, v + (size_t)t * v_row, v_row, out + (size_t)t * out_row, out_row, from, to);
        }
        from = to;
        t = end;
    }
    for (int i = 0; left && from.at != kept && i < of->rows; i++)
        memcpy(kept + i * MLXR_DELTA_COLUMNS, from.at + (size_t)i * from.row, (size_t)columns * 4);
}

// Channels [first, first + n) of a token's convolution, through silu. past: each channel's `taps` - 1 inputs before, or NULL
// for zeros; next, unless NULL, gets the newest of them. A literal `taps` makes the sums straight code.
MLXR_INLINE void mlxr_delta_convolve(const float *x, const float *weight, int taps, int first, int n, const float *past,
                                     float *next, float *y) {
    for (int i = 0; i < n; i++) {
        const size_t channel = (size_t)(first + i), row = channel * (size_t)(taps - 1);
        const float *w = weight + channel * (size_t)taps;
        float sum = 0.0f;
        for (int j = 0; j < taps - 1; j++) {
            const float value = past ? past[row + (size_t)j] : 0.0f;
            sum = f32_fma_one(w[j], value, sum);
            if (next && j) next[row + (size_t)j - 1] = value;
        }
        if (next) next[row + (size_t)taps - 2] = x[channel];
        y[i] = f32_fma_one(w[taps - 1], x[channel], sum);
    }
    for (int i = 0; i < n; i += MLXR_LANES) f32_store_at(y, i, n, f32_silu(f32_load_at(y, i, n)));
}
