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

enum { MLXR_ADAPTED_TOKENS = 16, MLXR_ADAPTED_PANELS = 4, MLXR_ADAPTED_ROWS = 4 };  // of a unit of work

// Up to 16 neighbouring tokens in the order of their adapters.
typedef struct {
    int count, token[MLXR_ADAPTED_TOKENS], id[MLXR_ADAPTED_TOKENS];
} mlxr_by_adapter;

MLXR_INLINE mlxr_by_adapter mlxr_tokens_by_adapter(const mlxr_adapted_batch *b, int first) {
    mlxr_by_adapter by = {.count = 0};
    for (int t = first; t < b->batch.tokens && t < first + MLXR_ADAPTED_TOKENS; t++) {
        int i = by.count++;
        for (; i && by.id[i - 1] > b->ids[t]; i--) by.id[i] = by.id[i - 1], by.token[i] = by.token[i - 1];
        by.id[i] = b->ids[t], by.token[i] = t;
    }
    return by;
}

// How many tokens from the i-th on have one adapter, at most 4.
MLXR_INLINE int mlxr_same_adapter(const mlxr_by_adapter *by, int i) {
    int n = 1;
    while (n < 4 && i + n < by->count && by->id[i + n] == by->id[i]) n++;
    return n;
}

// to[token][r] = scale * (row r of a) . x, of 4 rows of n columns and m tokens. `to` has `apart` numbers of each token.
MLXR_INLINE void mlxr_adapter_rows(int m, const uint16_t *a, const float *x, int n, const int *token, const float *scales,
                                   float *to, int apart) {
    f32v sums[MLXR_ADAPTED_ROWS][4];
    const int whole = n / MLXR_LANES * MLXR_LANES;
    for (int r = 0; r < MLXR_ADAPTED_ROWS; r++)
        for (int i = 0; i < m; i++) sums[r][i] = f32_zero();
    for (int c = 0; c < whole; c += MLXR_LANES) {
        f32v v[4];
        MLXR_UNROLL for (int i = 0; i < m; i++) v[i] = f32_load(x + (size_t)token[i] * (size_t)n + c);
        MLXR_UNROLL for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) {
            const f32v row = f16_load(a + (size_t)r * (size_t)n + c);
            MLXR_UNROLL for (int i = 0; i < m; i++) sums[r][i] = f32_fma(v[i], row, sums[r][i]);
        }
    }
    for (int i = 0; i < m; i++)
        for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) {
            float sum = f32_sum(sums[r][i]);
            for (int c = whole; c < n; c++)
                sum += x[(size_t)token[i] * (size_t)n + (size_t)c] * f16_to_f32(a[(size_t)r * (size_t)n + (size_t)c]);
            to[(size_t)token[i] * (size_t)apart + (size_t)r] = sum * scales[token[i]];
        }
}

// y += low @ up, of whole panels and m tokens; what low has of a token is `low_width` from what it has of the next.
MLXR_INLINE void mlxr_adapter_panels(int m, int panels, int rank, const int *token, const float *low, int low_width,
                                     const uint16_t *up, float (*const *y)[16]) {
    enum { VECTORS = 16 / MLXR_LANES };
    for (int lane = 0; lane < VECTORS; lane++) {
        f32v v[MLXR_ADAPTED_PANELS][4];
        MLXR_UNROLL for (int p = 0; p < panels; p++)
            MLXR_UNROLL for (int i = 0; i < m; i++) v[p][i] = f32_load(y[i][p * MLXR_ADAPTED_TOKENS] + MLXR_LANES * lane);
        for (int r = 0; r < rank; r++) {
            f32v by[4];
            MLXR_UNROLL for (int i = 0; i < m; i++) by[i] = f32_set1(low[(size_t)token[i] * (size_t)low_width + (size_t)r]);
            MLXR_UNROLL for (int p = 0; p < panels; p++) {
                const f32v row = f16_load(up + (size_t)(p * rank + r) * 16 + MLXR_LANES * lane);
                MLXR_UNROLL for (int i = 0; i < m; i++) v[p][i] = f32_fma(by[i], row, v[p][i]);
            }
        }
        MLXR_UNROLL for (int p = 0; p < panels; p++)
            MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(y[i][p * MLXR_ADAPTED_TOKENS] + MLXR_LANES * lane, v[p][i]);
    }
}

// Columns [column, column + 64) of a part of `width` outputs for some tokens: sums into y[panel][token][16]. x: the part's
// columns of token 0, `x_width` from one token to the next; low and lift: likewise the part's.
MLXR_INLINE void mlxr_adapter_unit(const mlxr_by_adapter *by, int first, int column, int width, int rank, const float *x,
                                   int x_width, const float *low, int low_width, const uint16_t *lift, float (*y)[16]) {
    const int left = width - column < 64 ? width - column : 64, whole = left / 16, rest = left % 16;
    for (int t = first; t < first + by->count; t++)
        for (int p = 0; 16 * p < left; p++)
            memcpy(y[p * MLXR_ADAPTED_TOKENS + t - first], x + (size_t)t * (size_t)x_width + column + 16 * p,
                   4 * (size_t)(left - 16 * p < 16 ? left - 16 * p : 16));
    for (int i = 0, n; i < by->count; i += n) {
        n = mlxr_same_adapter(by, i);
        if (by->id[i] < 0) continue;
        const uint16_t *up = lift + ((size_t)by->id[i] * (size_t)width + (size_t)column) * (size_t)rank;
        float(*to[4])[16];
        for (int j = 0; j < n; j++) to[j] = y + (by->token[i + j] - first);
        if (n == 4 && whole == MLXR_ADAPTED_PANELS)
            mlxr_adapter_panels(4, MLXR_ADAPTED_PANELS, rank, by->token + i, low, low_width, up, to);
        else
            for (int j = 0; j < n; j++) {
                if (whole == MLXR_ADAPTED_PANELS)
                    mlxr_adapter_panels(1, MLXR_ADAPTED_PANELS, rank, by->token + i + j, low, low_width, up, to + j);
                else
                    for (int p = 0; p < whole; p++) {
                        float(*at)[16] = to[j] + p * MLXR_ADAPTED_TOKENS;
                        mlxr_adapter_panels(1, 1, rank, by->token + i + j, low, low_width, up + 16 * p * rank, &at);
                    }
            }
        for (int j = 0; j < n && rest; j++)
            for (int r = 0; r < rank; r++) {
                const float factor = low[(size_t)by->token[i + j] * (size_t)low_width + (size_t)r];
                for (int o = 0; o < rest; o++)
                    to[j][whole * MLXR_ADAPTED_TOKENS][o] += factor * f16_to_f32(up[16 * whole * rank + r * rest + o]);
            }
    }
}
