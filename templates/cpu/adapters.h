// Which adapter each token of a step uses, and products of rows with an adapter's matrices.
//
// An adapter's first matrix is [rank][columns]; its second one lies in panels of 16 outputs, [panel][rank][16], the last one
// of as many outputs as are left: so a panel is in one piece of memory. Both are f16, or, beside weights whose products
// round their inputs, bf16 (`pairs`), with panels of pairs of ranks, [panel][rank / 2][16][2]: the rows become bf16, too,
// where the CPU multiplies such pairs. Tokens of the same adapter are multiplied four at a time, since to widen a number
// costs as much as to multiply.
//
// Beside quantised weights, whose products have 8-bit inputs, both matrices and the rows in low rank are 8-bit integers, if
// the rank is a multiple of 16 (`bytes`): 16 ranks of a first matrix are a panel of Q8_0, and 16 ranks of 16 outputs are a
// tile (MLXR_LIFT_TILE bytes): f32 scale[output], then by 4 ranks [output][4].
#if defined(MLXR_AVX512) && defined(__AVX512BF16__)
#define MLXR_ADAPTED_PAIRS 1
#else
#define MLXR_ADAPTED_PAIRS 0
#endif
#ifdef MLXR_HAS_Q8_0
#define MLXR_ADAPTED_BYTES 1
#else
#define MLXR_ADAPTED_BYTES 0
#endif

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
MLXR_INLINE void mlxr_lower_rows(int pairs, int m, const uint16_t *a, const uint16_t *next, const float *const *x, int n,
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
            const uint16_t *at = a + (size_t)r * (size_t)n + c;
            const f32v row = pairs ? bf16_load(at) : f16_load(at);
            MLXR_UNROLL for (int i = 0; i < m; i++) sums[i][r] = f32_fma(v[i], row, sums[i][r]);
        }
    }
    MLXR_UNROLL for (int i = 0; i < 4 * MLXR_ADAPTED_ROWS; i += MLXR_LANES) f32_store(found[0] + i, f32_sums(sums[0] + i));
    for (int i = 0; i < m; i++)
        for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) {
            float sum = found[i][r];
            for (int c = whole; c < n; c++) {
                const uint16_t one = a[(size_t)r * (size_t)n + (size_t)c];
                sum += x[i][c] * (pairs ? bf16_to_f32(one) : f16_to_f32(one));
            }
            to[(size_t)token[i] * (size_t)apart + (size_t)r] = sum * scales[token[i]];
        }
}

#if MLXR_ADAPTED_PAIRS
// A row of n numbers times a scale as bf16, then zeros up to a multiple of 32; dst may be x.
MLXR_INLINE void mlxr_scaled_pairs(const float *x, int n, float scale, uint8_t *dst) {
    for (int k = 0; k < n; k += 32) {
        const f32v low = f32_load_at(x, k, n) * scale, high = n - k > 16 ? f32_load_at(x, k + 16, n) * scale : f32_zero();
        _mm512_storeu_si512(dst + 2 * k, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
    }
}

// The same of rows that are bf16, times their scales, and end in zeros; `to` is bf16, too.
MLXR_INLINE void mlxr_lower_pairs(int m, const uint16_t *a, const uint16_t *next, const uint16_t *const *x, int n,
                                  const int *token, uint16_t *to, int apart) {
    f32v sums[4 * MLXR_ADAPTED_ROWS];
    uint64_t found[4];
    const __mmask32 rest = (__mmask32)((UINT64_C(1) << n % 32) - 1);
    MLXR_UNROLL for (int i = 0; i < 4 * MLXR_ADAPTED_ROWS; i++) sums[i] = f32_zero();
    for (int c = 0; c < n; c += 32) {
        __m512bh v[4];
        for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) prefetch(next + (size_t)r * (size_t)n + c);
        MLXR_UNROLL for (int i = 0; i < m; i++) v[i] = (__m512bh)_mm512_loadu_si512(x[i] + c);
        MLXR_UNROLL for (int r = 0; r < MLXR_ADAPTED_ROWS; r++) {
            const uint16_t *at = a + (size_t)r * (size_t)n + c;
            const __m512i row = n - c < 32 ? _mm512_maskz_loadu_epi16(rest, at) : _mm512_loadu_si512(at);
            MLXR_UNROLL for (int i = 0; i < m; i++)
                sums[4 * i + r] = (f32v)_mm512_dpbf16_ps((__m512)sums[4 * i + r], v[i], (__m512bh)row);
        }
    }
    _mm256_storeu_si256((__m256i *)found, (__m256i)_mm512_cvtneps_pbh((__m512)f32_sums(sums)));
    for (int i = 0; i < m; i++) memcpy(to + (size_t)token[i] * (size_t)apart, &found[i], sizeof found[i]);
}
#endif

enum { MLXR_LIFT_TILE = 16 * 4 + 16 * 16 };

// A projection's output, whose sums get what adapters add before the steps after them.
typedef struct {
    mlxr_output output;  // which mlxr_finish_adapted finishes
    mlxr_finish finish;  // the steps
    const mlxr_adapted_batch *batch;
    void *low;         // [tokens][parts][rank] f32 or bf16, or by 16 ranks mlxr_act_block; anything of tokens without one
    const void *lift;  // by part: [slots], in panels
    const void *down;  // of bytes
    const int *widths; // columns of each part, which are the segments; if gated, of the gate and of up
    int parts, gated, rank, slots, pairs, bytes;
    int first;  // the tokens that `by` has begin there
    mlxr_by_adapter by;
    // What the next projection reads of its first matrices comes closer while this one multiplies, some of it with each
    // panel: this thread's pieces.
    const uint8_t *later;          // NULL: nothing does
    int later_parts, later_split;  // each matrix of a part consists of so many pieces
    int piece, pieces, at, step, later_bytes;  // of a piece
    int64_t panel_bytes;  // of this projection's weights
    int waits;            // panels that come first, with which nothing does
} mlxr_adapted_output;

// 4 rows of a first matrix: of the i-th piece of the pieces of all groups.
MLXR_INLINE const uint16_t *mlxr_piece(const mlxr_adapted_output *a, const mlxr_by_adapter *by, const uint16_t *down,
                                       int parts, int n, int i) {
    const int of_part = a->rank / MLXR_ADAPTED_ROWS, pieces = parts * of_part, piece = i % pieces;
    const int place = (piece / of_part * a->slots + by->group[i / pieces].id) * a->rank + piece % of_part * MLXR_ADAPTED_ROWS;
    return down + (size_t)place * (size_t)n;
}

// Finds this thread's pieces of the next projection's first matrices, and how much of them comes with each panel.
// What the cache does not hold until then is left alone: too much, or what comes before many bytes of weights.
MLXR_INLINE void mlxr_plan_later(const mlxr_worker *w, mlxr_adapted_output *a, const mlxr_by_adapter *by) {
    enum { MOST_BYTES = 256 << 10 };
    const int64_t all = (a->output.width + 15) / 16 / w->threads, held = 2 * MOST_BYTES / a->panel_bytes;
    const int64_t panels = all < held ? all : held;
    mlxr_share(w, by->groups * a->later_parts * a->later_split, &a->piece, &a->pieces);
    const int64_t bytes = (int64_t)(a->pieces - a->piece) * a->later_bytes;
    if (bytes > MOST_BYTES || !panels) a->pieces = a->piece;
    else a->step = (int)(bytes / panels) + 64, a->waits = (int)(all - panels);
}

// Brings the next of these pieces closer: into the second level cache, since the first one is full of what is multiplied.
MLXR_INLINE void mlxr_near_later(mlxr_adapted_output *a) {
    const int of_group = a->later_parts * a->later_split;
    for (int left = a->step; left > 0 && a->piece < a->pieces;) {
        const int part = a->piece % of_group / a->later_split, id = a->by.group[a->piece / of_group].id;
        const int at = (part * a->slots + id) * a->later_split + a->piece % a->later_split;
        const uint8_t *from = a->later + (size_t)at * (size_t)a->later_bytes;
        for (; left > 0 && a->at < a->later_bytes; left -= 64, a->at += 64) __builtin_prefetch(from + a->at, 0, 2);
        if (a->at >= a->later_bytes) a->at = 0, a->piece++;
    }
}

// low = scale * (x or its norm) @ down[part][adapter].T of each token's adapter: [parts][slots][rank][columns]. Of each 16
// tokens threads share the groups, and of those pieces of 4 rows of a part.
MLXR_OUTLINE void mlxr_lower(mlxr_worker *w, const mlxr_input *in, const uint16_t *down, mlxr_adapted_output *a) {
    const int n = in->columns, apart = a->parts * a->rank, pieces = apart / MLXR_ADAPTED_ROWS;
    const size_t normed = mlxr_row_floats(n);
    const float *scales = a->batch->scales;
    float *scratch = (float *)w->scratch;
    for (int t = 0; t < in->rows; t += MLXR_ADAPTED_TOKENS) {
        const mlxr_by_adapter by = mlxr_tokens_by_adapter(a->batch, t, in->rows);
        if (a->later && in->rows <= MLXR_ADAPTED_TOKENS) mlxr_plan_later(w, a, &by);
        if (in->rows <= MLXR_ADAPTED_TOKENS && !by.groups) a->output.finish = a->finish;
        const float *x[4];
        int first, last;
        mlxr_share(w, by.groups * pieces, &first, &last);
        if (first == last) continue;
        const uint16_t *rows = mlxr_piece(a, &by, down, a->parts, n, first), *next;
        for (int c = 0; c < MLXR_ADAPTED_ROWS * n; c += 32) prefetch(rows + c);
        for (int i = first; i < last; i++, rows = next) {
            const int count = by.group[i / pieces].count, *token = by.token + by.group[i / pieces].at;
            for (int j = 0; j < count && (i == first || i % pieces == 0); j++) {
                float *own = scratch + (size_t)j * normed;
                x[j] = in->x + (size_t)token[j] * (size_t)n;
                if (in->eps > 0.0f) {
                    mlxr_norm_row(x[j], in, own);
                    x[j] = own;
                }
#if MLXR_ADAPTED_PAIRS
                if (a->pairs) {
                    mlxr_scaled_pairs(x[j], n, scales[token[j]], (uint8_t *)own);
                    x[j] = own;
                }
#endif
            }
            next = i + 1 < last ? mlxr_piece(a, &by, down, a->parts, n, i + 1) : rows;
            float *to = (float *)a->low + i % pieces * MLXR_ADAPTED_ROWS;
#if MLXR_ADAPTED_PAIRS
            uint16_t *half = (uint16_t *)a->low + i % pieces * MLXR_ADAPTED_ROWS;
            const uint16_t *const *v = (const uint16_t *const *)x;
            if (a->pairs && count == 4) mlxr_lower_pairs(4, rows, next, v, n, token, half, apart);
            else if (a->pairs && count == 3) mlxr_lower_pairs(3, rows, next, v, n, token, half, apart);
            else if (a->pairs && count == 2) mlxr_lower_pairs(2, rows, next, v, n, token, half, apart);
            else if (a->pairs) mlxr_lower_pairs(1, rows, next, v, n, token, half, apart);
            if (a->pairs) continue;
#endif
            if (count == 4 && a->pairs) mlxr_lower_rows(1, 4, rows, next, x, n, token, scales, to, apart);
            else if (count == 4) mlxr_lower_rows(0, 4, rows, next, x, n, token, scales, to, apart);
            else for (int j = 0; j < count; j++) {
                if (a->pairs) mlxr_lower_rows(1, 1, rows, next, x + j, n, token + j, scales, to, apart);
                else mlxr_lower_rows(0, 1, rows, next, x + j, n, token + j, scales, to, apart);
            }
        }
    }
    // Threads that share several rows wait for each other before they multiply these.
    if (in->rows == 1) mlxr_barrier(w);
}

#if MLXR_ADAPTED_BYTES
// 16 ranks of m tokens whose rows are 8-bit integers, which they become, too. `to` has `apart` blocks of each token.
MLXR_INLINE void mlxr_lower_panel(int m, const uint8_t *panel, int n, const uint8_t *const *x, const int *token,
                                  const float *scales, mlxr_act_block *to, int apart) {
    mlxr_act rows[4];
    float y[4][16], low[32] = {0};
    for (int i = 0; i < m; i++) rows[i] = mlxr_act_at(x[i], n);
    q8_0_dot(panel, n, rows, m, y);
    for (int i = 0; i < m; i++) {
        for (int r = 0; r < 16; r++) low[r] = y[i][r] * scales[token[i]];
        mlxr_quantise(low, 32, (uint8_t *)(to + (size_t)token[i] * (size_t)apart));
    }
}

// The same as mlxr_lower, of bytes. x: the rows as 8-bit integers, `x_bytes` from one to the next; NULL: this thread makes
// those that it needs. Returns whether any token uses an adapter.
MLXR_OUTLINE int mlxr_lower_bytes(mlxr_worker *w, const mlxr_input *in, const mlxr_output *out, const uint8_t *x,
                                  size_t x_bytes) {
    mlxr_adapted_output *a = (mlxr_adapted_output *)out;
    const int n = in->columns, panels = a->rank / 16, pieces = a->parts * panels;
    const size_t panel_bytes = (size_t)n / 32 * 16 * Q8_0_BYTES;
    uint8_t *own = w->scratch + mlxr_row_floats(n) * 4;
    int used = 0;
    for (int t = 0; t < in->rows; t += MLXR_ADAPTED_TOKENS) {
        const mlxr_by_adapter by = mlxr_tokens_by_adapter(a->batch, t, in->rows);
        used |= by.groups;
        if (a->later && in->rows <= MLXR_ADAPTED_TOKENS) mlxr_plan_later(w, a, &by);
        if (in->rows <= MLXR_ADAPTED_TOKENS && !by.groups) a->output.finish = a->finish;
        const uint8_t *rows[4];
        int first, last;
        mlxr_share(w, by.groups * pieces, &first, &last);
        for (int i = first; i < last; i++) {
            const int group = i / pieces, piece = i % pieces, m = by.group[group].count;
            const int *token = by.token + by.group[group].at;
            for (int j = 0; j < m && (i == first || piece == 0); j++) {
                rows[j] = x ? x + (size_t)token[j] * x_bytes : own + (size_t)j * mlxr_act_bytes(n);
                if (x) continue;
                mlxr_norm_row(in->x + (size_t)token[j] * (size_t)n, in, (float *)w->scratch);
                mlxr_quantise((const float *)w->scratch, n, own + (size_t)j * mlxr_act_bytes(n));
            }
            const int at = (piece / panels * a->slots + by.group[group].id) * panels + piece % panels;
            const uint8_t *panel = (const uint8_t *)a->down + (size_t)at * panel_bytes;
            mlxr_act_block *to = (mlxr_act_block *)a->low + piece;
            const float *scales = a->batch->scales;
            switch (m) {
                case 4: mlxr_lower_panel(4, panel, n, rows, token, scales, to, pieces); break;
                case 3: mlxr_lower_panel(3, panel, n, rows, token, scales, to, pieces); break;
                case 2: mlxr_lower_panel(2, panel, n, rows, token, scales, to, pieces); break;
                default: mlxr_lower_panel(1, panel, n, rows, token, scales, to, pieces);
            }
        }
    }
    return used;
}

// y[token - first] += low @ panel, of m tokens and a whole panel of bytes.
MLXR_INLINE void mlxr_lift_bytes(int m, const uint8_t *panel, int tiles, const mlxr_act_block *low, int apart,
                                 const int *token, int first, float (*y)[16]) {
    const mlxr_act_block *by[4];
    MLXR_UNROLL for (int i = 0; i < m; i++) by[i] = low + (size_t)token[i] * (size_t)apart;
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v sums[4];
        MLXR_UNROLL for (int i = 0; i < m; i++) sums[i] = f32_load(y[token[i] - first] + MLXR_LANES * p);
        for (int tile = 0; tile < tiles; tile++) {
            const uint8_t *at = panel + tile * MLXR_LIFT_TILE;
            const f32v scale = f32_load((const float *)at + MLXR_LANES * p);
            i8v weights[4];
            i32v dots[4];
            MLXR_UNROLL for (int g = 0; g < 4; g++) weights[g] = i8_load(at + 64 + 64 * g + 4 * MLXR_LANES * p);
            MLXR_UNROLL for (int i = 0; i < m; i++) dots[i] = i32_set1(MLXR_SIGNED_BY_128 ? by[i][tile].start128 : 0);
            MLXR_UNROLL for (int g = 0; g < 4; g++) {
#if !MLXR_WORDS
                const i8v biased = signed_weights(weights[g]);
#endif
                MLXR_UNROLL for (int i = 0; i < m; i++) {
                    const i8v four = broadcast4(by[i][tile].q + 4 * g);
#if MLXR_WORDS
                    dots[i] = add_words(dots[i], dot_words_signed(weights[g], four));
#else
                    dots[i] = dot_bytes(dots[i], biased, four);
#endif
                }
            }
            MLXR_UNROLL for (int i = 0; i < m; i++)
                sums[i] = f32_fma(f32_of_i32(dots[i]), scale * f32_set1(by[i][tile].d), sums[i]);
        }
        MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(y[token[i] - first] + MLXR_LANES * p, sums[i]);
    }
}

// See mlxr_lift_panel.
MLXR_INLINE void mlxr_lift_panel_bytes(const mlxr_adapted_output *a, int part, int column, float (*y)[16]) {
    const mlxr_by_adapter *by = &a->by;
    const int tiles = a->rank / 16, apart = a->parts * tiles, panels = (a->widths[part] + 15) / 16;
    const size_t panel_bytes = (size_t)tiles * MLXR_LIFT_TILE;
    const mlxr_act_block *low = (const mlxr_act_block *)a->low + part * tiles;
    int before = 0;
    for (int i = 0; i < part; i++) before += (a->widths[i] + 15) / 16;
    const uint8_t *lift = (const uint8_t *)a->lift + (size_t)(before * a->slots + column / 16) * panel_bytes;
    for (int i = 0; i < by->groups; i++) {
        const int *token = by->token + by->group[i].at;
        const uint8_t *panel = lift + (size_t)(by->group[i].id * panels) * panel_bytes;
        if (!i || by->group[i - 1].id != by->group[i].id)
            for (size_t c = 0; c < panel_bytes && column + 3 * 16 <= a->widths[part]; c += 64)
                __builtin_prefetch(panel + 2 * panel_bytes + c, 0, 2);
        switch (by->group[i].count) {
            case 4: mlxr_lift_bytes(4, panel, tiles, low, apart, token, a->first, y); break;
            case 3: mlxr_lift_bytes(3, panel, tiles, low, apart, token, a->first, y); break;
            case 2: mlxr_lift_bytes(2, panel, tiles, low, apart, token, a->first, y); break;
            default: mlxr_lift_bytes(1, panel, tiles, low, apart, token, a->first, y);
        }
    }
}
#endif

// y[token - first] += low @ panel, of m tokens and a whole panel; even ranks and odd ones are added up apart. `low` has
// `apart` numbers of each token.
MLXR_INLINE void mlxr_lift_tokens(int pairs, int m, const uint16_t *panel, int rank, const float *low, int apart,
                                  const int *token, int first, float (*y)[16]) {
    enum { VECTORS = 16 / MLXR_LANES };
    const float *by[4];
    MLXR_UNROLL for (int i = 0; i < m; i++) by[i] = low + (size_t)token[i] * (size_t)apart;
    MLXR_UNROLL for (int j = 0; j < VECTORS; j++) {
        f32v even[4], odd[4];
        MLXR_UNROLL for (int i = 0; i < m; i++) even[i] = f32_load(y[token[i] - first] + MLXR_LANES * j), odd[i] = f32_zero();
        for (int r = 0; r < rank; r += 2) {
            f32v one, other;
            if (pairs) {
                const u32v both = (u32v)i32_load(panel + 16 * r + 2 * MLXR_LANES * j);
                one = (f32v)(both << 16), other = (f32v)(both & 0xffff0000);
            } else {
                one = f16_load(panel + 16 * r + MLXR_LANES * j), other = f16_load(panel + 16 * r + 16 + MLXR_LANES * j);
            }
            MLXR_UNROLL for (int i = 0; i < m; i++) even[i] = f32_fma(f32_set1(by[i][r]), one, even[i]);
            MLXR_UNROLL for (int i = 0; i < m; i++) odd[i] = f32_fma(f32_set1(by[i][r + 1]), other, odd[i]);
        }
        MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(y[token[i] - first] + MLXR_LANES * j, even[i] + odd[i]);
    }
}

#if MLXR_ADAPTED_PAIRS
// The same by pairs: so are even pairs and odd ones.
MLXR_INLINE void mlxr_lift_pairs(int m, const uint16_t *panel, int rank, const uint16_t *low, int apart, const int *token,
                                 int first, float (*y)[16]) {
    const uint16_t *by[4];
    __m512 even[4], odd[4];
    MLXR_UNROLL for (int i = 0; i < m; i++) by[i] = low + (size_t)token[i] * (size_t)apart;
    MLXR_UNROLL for (int i = 0; i < m; i++) even[i] = (__m512)f32_load(y[token[i] - first]), odd[i] = _mm512_setzero_ps();
    for (int r = 0; r < rank; r += 4) {
        const __m512bh one = (__m512bh)i32_load(panel + 16 * r), other = (__m512bh)i32_load(panel + 16 * r + 32);
        MLXR_UNROLL for (int i = 0; i < m; i++)
            even[i] = _mm512_dpbf16_ps(even[i], one, (__m512bh)i32_set1(*(const i32_any *)(by[i] + r)));
        MLXR_UNROLL for (int i = 0; i < m; i++)
            odd[i] = _mm512_dpbf16_ps(odd[i], other, (__m512bh)i32_set1(*(const i32_any *)(by[i] + r + 2)));
    }
    MLXR_UNROLL for (int i = 0; i < m; i++) f32_store(y[token[i] - first], (f32v)(even[i] + odd[i]));
}
#endif

// The same, of a panel of fewer outputs.
MLXR_INLINE void mlxr_lift_part(int pairs, int m, const uint16_t *panel, int valid, int rank, const void *low, int apart,
                                const int *token, int first, float (*y)[16]) {
    for (int i = 0; i < m; i++)
        for (int r = 0; r < rank; r++) {
            const size_t at = (size_t)token[i] * (size_t)apart + (size_t)r;
            const int is_half = pairs && MLXR_ADAPTED_PAIRS;
            const float by = is_half ? bf16_to_f32(((const uint16_t *)low)[at]) : ((const float *)low)[at];
            for (int o = 0; o < valid; o++)
                y[token[i] - first][o] += by * (pairs ? bf16_to_f32(panel[(r / 2 * valid + o) * 2 + r % 2])
                                                      : f16_to_f32(panel[r * valid + o]));
        }
}

// The calls with a literal number of tokens.
#define MLXR_LIFT(m)                                                                             \
    if (a->pairs && MLXR_ADAPTED_PAIRS) MLXR_LIFT_PAIRS(m)                                       \
    else if (a->pairs) mlxr_lift_tokens(1, m, panel, rank, low, apart, token, a->first, y);      \
    else mlxr_lift_tokens(0, m, panel, rank, low, apart, token, a->first, y);
#if MLXR_ADAPTED_PAIRS
#define MLXR_LIFT_PAIRS(m) mlxr_lift_pairs(m, panel, rank, low, apart, token, a->first, y);
#else
#define MLXR_LIFT_PAIRS(m) {}
#endif
// What adapters add to `valid` columns from `column` of a part on, of the tokens in a->by. The panel after the
// next one is prefetched: a memory access takes longer than to finish a panel, and more of them at a time would wait.
MLXR_INLINE void mlxr_lift_panel(const mlxr_adapted_output *a, int part, int before, int column, int valid, float (*y)[16]) {
#if MLXR_ADAPTED_BYTES
    if (a->bytes) {
        mlxr_lift_panel_bytes(a, part, column, y);
        return;
    }
#endif
    const mlxr_by_adapter *by = &a->by;
    const int width = a->widths[part], rank = a->rank, apart = a->parts * rank;
    const void *low = (const uint8_t *)a->low + (size_t)(part * rank) * (a->pairs && MLXR_ADAPTED_PAIRS ? 2 : 4);
    const uint16_t *lift = (const uint16_t *)a->lift + ((size_t)before * (size_t)a->slots + (size_t)column) * (size_t)rank;
    for (int i = 0; i < by->groups; i++) {
        const int n = by->group[i].count, *token = by->token + by->group[i].at;
        const uint16_t *panel = lift + (size_t)by->group[i].id * (size_t)width * (size_t)rank;
        if (!i || by->group[i - 1].id != by->group[i].id)
            for (int c = 0; c < 16 * rank && column + 3 * 16 <= width; c += 32)
                __builtin_prefetch(panel + 2 * 16 * rank + c, 0, 2);
        if (valid < 16) {
            mlxr_lift_part(a->pairs, n, panel, valid, rank, low, apart, token, a->first, y);
            continue;
        }
        switch (n) {
            case 4: MLXR_LIFT(4) break;
            case 3: MLXR_LIFT(3) break;
            case 2: MLXR_LIFT(2) break;
            default: MLXR_LIFT(1)
        }
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
        if (a->piece < a->pieces && a->waits-- <= 0) mlxr_near_later(a);
        mlxr_lift_panel(a, part, before, column - before, valid, (float(*)[16])(y + (t - row)));
        if (a->gated) mlxr_lift_panel(a, 1, a->widths[0], column, valid, (float(*)[16])(u + (t - row)));
    }
    a->finish(out, row, count, column, valid, y, u);
}
