// Which adapter each token of a step uses, and products of rows with an adapter's matrices.
//
// Matrices are f16. An adapter's first one is [rank][columns]; its second one lies in panels of 16 outputs,
// [panel][rank][16], the last one of as many outputs as are left: so a panel is in one piece of memory. Tokens of the same
// adapter are multiplied four at a time, since to widen f16 costs as much as to multiply.

// A batch of a program with adapters: the runtime gives it where others have an mlxr_batch.
typedef struct {
    mlxr_batch batch;
    const int32_t *ids;   // [tokens]; -1: none
    const float *scales;  // [tokens]
} mlxr_adapted_batch;

MLXR_INLINE const mlxr_adapted_batch *mlxr_adapted(const mlxr_batch *b) { return (const mlxr_adapted_batch *)b; }

enum { MLXR_ADAPTED_TOKENS = 16, MLXR_ADAPTED_ROWS = 4 };  // of a unit of work

// Those of up to 16 neighbouring tokens that use an adapter, in groups of up to 4 of the same one, the adapters in order.
typedef struct {
    int tokens, groups, token[MLXR_ADAPTED_TOKENS];
    struct {
        int id, count, at;  // token[at] is its first one
    } group[MLXR_ADAPTED_TOKENS];
} mlxr_by_adapter;

MLXR_INLINE mlxr_by_adapter mlxr_tokens_by_adapter(const mlxr_adapted_batch *b, int first, int last) {
    mlxr_by_adapter by = {.tokens = last - first < MLXR_ADAPTED_TOKENS ? last - first : MLXR_ADAPTED_TOKENS};
    int ids[MLXR_ADAPTED_TOKENS], count = 0;
    for (int t = first; t < first + by.tokens; t++) {
        if (b->ids[t] < 0) continue;
        int i = count++;
        for (; i && ids[i - 1] > b->ids[t]; i--) ids[i] = ids[i - 1], by.token[i] = by.token[i - 1];
        ids[i] = b->ids[t], by.token[i] = t;
    }
    for (int i = 0, n; i < count; i += n) {
        for (n = 1; n < 4 && i + n < count && ids[i + n] == ids[i]; n++) {}
        by.group[by.groups].id = ids[i], by.group[by.groups].count = n, by.group[by.groups++].at = i;
    }
    return by;
}

// to[token][r] = scale * (row r of a) . x, of 4 rows of n columns and m tokens, whose rows x are. `to` has `apart` numbers
// of each token. As many rows from `next` on are prefetched.
MLXR_INLINE void mlxr_lower_rows(int m, const uint16_t *a, const uint16_t *next, const float *const *x, int n,
                                 const int *token, const float *scales, float *to, int apart) {
    f32v sums[4][MLXR_ADAPTED_ROWS];
    float found[4][MLXR_ADAPTED_ROWS];
    const int whole = n / MLXR_LANES * MLXR_LANES;
    MLXR_UNROLL for (int i = 0; i < 4; i++)
        MLXR_UNROLL for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) sums[i][r] = f32_zero();
    for (int c = 0; c < whole; c += MLXR_LANES) {
        f32v v[4];
        for (int r = 0; c % 32 == 0 && r < MLXR_ADAPTED_ROWS; r++) prefetch(next + (size_t)r * (size_t)n + c);
        MLXR_UNROLL for (int i = 0; i < m; i++) v[i] = f32_load(x[i] + c);
        MLXR_UNROLL for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) {
            const f32v row = f16_load(a + (size_t)r * (size_t)n + c);
            MLXR_UNROLL for (int i = 0; i < m; i++) sums[i][r] = f32_fma(v[i], row, sums[i][r]);
        }
    }
    MLXR_UNROLL for (int i = 0; i < 4 * MLXR_ADAPTED_ROWS; i += MLXR_LANES) f32_store(found[0] + i, f32_sums(sums[0] + i));
    for (int i = 0; i < m; i++)
        for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) {
            float sum = found[i][r];
            for (int c = whole; c < n; c++) sum += x[i][c] * f16_to_f32(a[(size_t)r * (size_t)n + (size_t)c]);
            to[(size_t)token[i] * (size_t)apart + (size_t)r] = sum * scales[token[i]];
        }
}

// A projection's output, whose sums get what adapters add before the steps after them.
typedef struct {
    mlxr_output output;  // which mlxr_finish_adapted finishes
    mlxr_finish finish;  // the steps
    const mlxr_adapted_batch *batch;
    float *low;            // [tokens][parts][rank]; anything of tokens without an adapter
    const uint16_t *lift;  // by part: [slots], in panels
    const int *widths;     // columns of each part, which are the segments; if gated, of the gate and of up
    int parts, gated, rank, slots;
    int first;  // the tokens that `by` has begin there
    mlxr_by_adapter by;
} mlxr_adapted_output;

// 4 rows of a first matrix: of the i-th piece of the pieces of all groups.
MLXR_INLINE const uint16_t *mlxr_piece(const mlxr_adapted_output *a, const mlxr_by_adapter *by, const uint16_t *down, int n,
                                       int i) {
    const int of_part = a->rank / MLXR_ADAPTED_ROWS, pieces = a->parts * of_part, piece = i % pieces;
    const int place = (piece / of_part * a->slots + by->group[i / pieces].id) * a->rank + piece % of_part * MLXR_ADAPTED_ROWS;
    return down + (size_t)place * (size_t)n;
}

// low = scale * (x or its norm) @ down[part][adapter].T of each token's adapter: [parts][slots][rank][columns]. Of each 16
// tokens threads share the groups, and of those pieces of 4 rows of a part.
MLXR_OUTLINE void mlxr_lower(mlxr_worker *w, const mlxr_input *in, const uint16_t *down, const mlxr_adapted_output *a) {
    const int n = in->columns, apart = a->parts * a->rank, pieces = apart / MLXR_ADAPTED_ROWS;
    const size_t normed = mlxr_row_floats(n);
    float *scratch = (float *)w->scratch;
    for (int t = 0; t < in->rows; t += MLXR_ADAPTED_TOKENS) {
        const mlxr_by_adapter by = mlxr_tokens_by_adapter(a->batch, t, in->rows);
        const float *x[4];
        int first, last;
        mlxr_share(w, by.groups * pieces, &first, &last);
        if (first == last) continue;
        const uint16_t *rows = mlxr_piece(a, &by, down, n, first), *next;
        for (int c = 0; c < MLXR_ADAPTED_ROWS * n; c += 32) prefetch(rows + c);
        for (int i = first; i < last; i++, rows = next) {
            const int count = by.group[i / pieces].count, *token = by.token + by.group[i / pieces].at;
            for (int j = 0; j < count && (i == first || i % pieces == 0); j++) {
                x[j] = in->x + (size_t)token[j] * (size_t)n;
                if (in->eps <= 0.0f) continue;
                mlxr_norm_row(x[j], in, scratch + (size_t)j * normed);
                x[j] = scratch + (size_t)j * normed;
            }
            next = i + 1 < last ? mlxr_piece(a, &by, down, n, i + 1) : rows;
            float *to = a->low + i % pieces * MLXR_ADAPTED_ROWS;
            if (count == 4) mlxr_lower_rows(4, rows, next, x, n, token, a->batch->scales, to, apart);
            else for (int j = 0; j < count; j++) mlxr_lower_rows(1, rows, next, x + j, n, token + j, a->batch->scales, to, apart);
        }
    }
    // Threads that share several rows wait for each other before they multiply these.
    if (in->rows == 1) mlxr_barrier(w);
}

// y[token - first] += low @ panel, of m tokens and a whole panel; even ranks and odd ones are added up apart. `low` has
// `apart` numbers of each token.
MLXR_INLINE void mlxr_lift_tokens(int m, const uint16_t *panel, int rank, const float *low, int apart, const int *token,
                                  int first, float (*y)[16]) {
    enum { VECTORS = 16 / MLXR_LANES };
    const float *by[4];
    MLXR_UNROLL for (int i = 0; i < m; i++) by[i] = low + (size_t)token[i] * (size_t)apart;
    MLXR_UNROLL for (int j = 0; j < VECTORS; j++) {
        f32v even[4], odd[4];
        MLXR_UNROLL for (int i = 0; i < m; i++) even[i] = f32_load(y[token[i] - first] + MLXR_LANES * j), odd[i] = f32_zero();
        for (int r = 0; r < rank; r += 2) {
            const f32v one = f16_load(panel + 16 * r + MLXR_LANES * j), other = f16_load(panel + 16 * r + 16 + MLXR_LANES * j);
            MLXR_UNROLL for (int i = 0; i < m; i++) even[i] = f32_fma(f32_set1(by[i][r]), one, even[i]);
            MLXR_UNROLL for (int i = 0; i < m; i++) odd[i] = f32_fma(f32_set1(by[i][r + 1]), other, odd[i]);
        }
        MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(y[token[i] - first] + MLXR_LANES * j, even[i] + odd[i]);
    }
}

// The same, of a panel of fewer outputs.
MLXR_INLINE void mlxr_lift_part(int m, const uint16_t *panel, int valid, int rank, const float *low, int apart,
                                const int *token, int first, float (*y)[16]) {
    for (int i = 0; i < m; i++)
        for (int r = 0; r < rank; r++) {
            const float by = low[(size_t)token[i] * (size_t)apart + (size_t)r];
            for (int o = 0; o < valid; o++) y[token[i] - first][o] += by * f16_to_f32(panel[r * valid + o]);
        }
}

// What adapters add to `valid` columns from `column` of a part on, of the tokens in a->by. The next panel is prefetched.
MLXR_INLINE void mlxr_lift_panel(const mlxr_adapted_output *a, int part, int before, int column, int valid, float (*y)[16]) {
    const mlxr_by_adapter *by = &a->by;
    const int width = a->widths[part], rank = a->rank, apart = a->parts * rank;
    const float *low = a->low + part * rank;
    const uint16_t *lift = a->lift + ((size_t)before * (size_t)a->slots + (size_t)column) * (size_t)rank;
    const int next = width - column - valid < 16 ? width - column - valid : 16;
    for (int i = 0; i < by->groups; i++) {
        const int n = by->group[i].count, *token = by->token + by->group[i].at;
        const uint16_t *panel = lift + (size_t)by->group[i].id * (size_t)width * (size_t)rank;
        if (!i || by->group[i - 1].id != by->group[i].id)
            for (int c = 0; c < next * rank; c += 32) prefetch(panel + valid * rank + c);
        if (valid < 16) mlxr_lift_part(n, panel, valid, rank, low, apart, token, a->first, y);
        else if (n == 4) mlxr_lift_tokens(4, panel, rank, low, apart, token, a->first, y);
        else if (n == 3) mlxr_lift_tokens(3, panel, rank, low, apart, token, a->first, y);
        else if (n == 2) mlxr_lift_tokens(2, panel, rank, low, apart, token, a->first, y);
        else mlxr_lift_tokens(1, panel, rank, low, apart, token, a->first, y);
    }
}

// See mlxr_finish. The sums are the thread's own, and change.
MLXR_OUTLINE void mlxr_finish_adapted(const mlxr_output *out, int row, int count, int column, int valid,
                                      const float (*y)[16], const float (*u)[16]) {
    mlxr_adapted_output *a = (mlxr_adapted_output *)out;
    int part = 0, before = 0;
    if (!a->gated)
        while (column - before >= a->widths[part]) before += a->widths[part++];
    for (int t = row; t < row + count; t += MLXR_ADAPTED_TOKENS) {
        const int last = row + count, left = last - t < MLXR_ADAPTED_TOKENS ? last - t : MLXR_ADAPTED_TOKENS;
        if (a->first != t || a->by.tokens != left) a->by = mlxr_tokens_by_adapter(a->batch, a->first = t, last);
        mlxr_lift_panel(a, part, before, column - before, valid, (float(*)[16])(y + (t - row)));
        if (a->gated) mlxr_lift_panel(a, 1, a->widths[0], column, valid, (float(*)[16])(u + (t - row)));
    }
    a->finish(out, row, count, column, valid, y, u);
}
