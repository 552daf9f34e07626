// ==== parts that several kernels share
// bf16 matrices of 48 columns: panels of 1536 bytes.
MLXR_OUTLINE void bf16_48_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
#if defined(MLXR_AMX)
    if (m > 1) {
        float_panel_columns(MLXR_BF16, panel, 48, valid, x, m, y);
        return;
    }
#endif
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 48) / 4;
    for (int i = 0; i < m; i += 8, rows += 8 * stride)
        MLXR_BY_8_ROWS(m - i, float_panel_dot(MLXR_BF16, panel, 48, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void bf16_48_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    float_panel_bf16(MLXR_BF16, panel, 48, valid, k0, k1, (uint16_t *)dst);
    return;
#endif
    float_panel_f32(MLXR_BF16, panel, 48, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix bf16_48 = { bf16_48_dot, bf16_48_unpack, 1536, MLXR_ROWS_HALF };

MLXR_OUTLINE void finish(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    mlxr_finish_rows(MLXR_NO_ACTIVATION, 0, 0, out, row, count, column, valid, y, u);
}

// bf16 matrices of 240 columns: panels of 7680 bytes.
MLXR_OUTLINE void bf16_240_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
#if defined(MLXR_AMX)
    if (m > 1) {
        float_panel_columns(MLXR_BF16, panel, 240, valid, x, m, y);
        return;
    }
#endif
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 240) / 4;
    for (int i = 0; i < m; i += 8, rows += 8 * stride)
        MLXR_BY_8_ROWS(m - i, float_panel_dot(MLXR_BF16, panel, 240, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void bf16_240_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    float_panel_bf16(MLXR_BF16, panel, 240, valid, k0, k1, (uint16_t *)dst);
    return;
#endif
    float_panel_f32(MLXR_BF16, panel, 240, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix bf16_240 = { bf16_240_dot, bf16_240_unpack, 7680, MLXR_ROWS_HALF };

MLXR_OUTLINE void finish_residual(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    mlxr_finish_rows(MLXR_NO_ACTIVATION, 0, 1, out, row, count, column, valid, y, u);
}

MLXR_OUTLINE void finish_silu(const mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                  const float (*u)[16]) {
    mlxr_finish_rows(MLXR_SILU, 0, 0, out, row, count, column, valid, y, u);
}

// bf16 matrices of 88 columns: panels of 2816 bytes.
MLXR_OUTLINE void bf16_88_dot(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]) {
#if defined(MLXR_AMX)
    if (m > 1) {
        float_panel_columns(MLXR_BF16, panel, 88, valid, x, m, y);
        return;
    }
#endif
    const float *rows = (const float *)x;
    const int stride = mlxr_row_bytes(MLXR_ROWS_F32, 88) / 4;
    for (int i = 0; i < m; i += 8, rows += 8 * stride)
        MLXR_BY_8_ROWS(m - i, float_panel_dot(MLXR_BF16, panel, 88, valid, rows, stride, MLXR_M, y + i))
}

MLXR_OUTLINE void bf16_88_unpack(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst) {
#if defined(MLXR_BF16_MATMUL)
    float_panel_bf16(MLXR_BF16, panel, 88, valid, k0, k1, (uint16_t *)dst);
    return;
#endif
    float_panel_f32(MLXR_BF16, panel, 88, valid, k0, k1, (float *)dst);
}

static const mlxr_matrix bf16_88 = { bf16_88_dot, bf16_88_unpack, 2816, MLXR_ROWS_HALF };

// ==== kernels
// Cosines and sines of the step's positions, for all layers. The angle is an f32 product, as the reference rounds it;
// its cosine and sine are those of double precision, rounded once. Threads split the (token, pair)s.
//   out  [tokens, 40] f32: 20 cosines, then 20 sines
static void rope_table_76cafd88(mlxr_worker *w, const mlxr_batch *b, float *out) {
    static const float frequencies[20] = {
        1.0f, 0.630957365f, 0.398107171f, 0.251188636f, 0.158489317f, 0.100000001f,
        0.0630957335f, 0.0398107171f, 0.0251188651f, 0.0158489328f, 0.00999999978f, 0.00630957354f,
        0.00398107152f, 0.00251188641f, 0.00158489321f, 0.00100000005f, 0.000630957366f, 0.000398107164f,
        0.000251188641f, 0.000158489318f,
    };
    int first, last;
    mlxr_share(w, b->tokens * 20, &first, &last);
    for (int i = first; i < last; i++) {
        const int token = i / 20, pair = i % 20;
        const float angle = (float)b->positions[token] * frequencies[pair];
        float *row = out + (size_t)token * 40;
        row[pair] = (float)cos((double)angle);
        row[pair + 20] = (float)sin((double)angle);
    }
}

// out = table[token_ids]
//   table [61, 48] bf16, rows
//   out   [tokens, 48] f32
static void embed_41531896(mlxr_worker *w, const mlxr_batch *b, const uint8_t *table, float *out) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const int row = b->token_ids[t];
        float *to = out + (size_t)t * 48;
        float_row(MLXR_BF16, table + (size_t)row * 96, 48, to);
    }
}

// qkv: out = rms_norm(x) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [240, 48] bf16
//   w1       [80, 48] bf16
//   w2       [80, 48] bf16
//   out      [tokens, 400] f32
static void qkv_24458f63(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 48,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &bf16_48,
            .w = w0,
            .rows = 240,
        },
        {
            .matrix = &bf16_48,
            .w = w1,
            .rows = 80,
        },
        {
            .matrix = &bf16_48,
            .w = w2,
            .rows = 80,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 400,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 3, MLXR_FEW_HALF, MLXR_ROWS_FAST, &output);
}

// Decode: RoPE, cache write and attention of one new token a sequence.
//
// A thread walks its keys a tile of 64 at a time, for all KV heads in turn: so it reads the arena in the order of its
// bytes, and each of them once. K, then V, of a tile and head are widened to f32 in scratch, and serve all 3 query
// heads on that KV head. Where there is much to read, threads share the keys of all sequences evenly, in units of 16; of
// a sequence that falls to several of them each leaves a partial result, and these are merged (split-KV, as in
// FlashDecoding). Else they share the KV heads, and need not wait for each other.
// The thread that has a sequence's last keys stores the new token's K and V first; no other reads them.
//   qkv         [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   rope_table  [tokens, 40] f32: cosines, then sines
//   K, V        [40, 2, 4, 2, 40] f32
//   out         [tokens, 240] f32

// Keys that a sequence sees: [first, context_len).
static inline int attend_decode_f66d18eb_first(const mlxr_batch *b, int seq) {
    return 0;
}

static inline int attend_decode_f66d18eb_units(const mlxr_batch *b, int seq) {
    return (b->context_lens[seq] - attend_decode_f66d18eb_first(b, seq) + 15) / 16;
}

// K and V of a sequence's new token, of some KV heads, into the arena.
static void attend_decode_f66d18eb_store(mlxr_worker *w, const mlxr_batch *b, int seq, int first_head, int last_head, const float *qkv,
        const float *rope_table, int layer) {
    const float *keys = qkv + (size_t)seq * 400 + 240;
    const float *rotation = rope_table + (size_t)seq * 40;
    const size_t row = (size_t)layer * 1280u + (size_t)(b->slots[seq] / 4) * 2560u + (size_t)(b->slots[seq] % 4) * 320u;
    for (int head = first_head; head < last_head; head++) {
        float rotated[48];
        rope_head(rotated, keys + head * 40, rotation, 40, 40, 0, 1.0f);
        cache_store(w->model->k_arena + row + head * 160, rotated, MLXR_CACHE_F32, 40);
        cache_store(w->model->v_arena + row + head * 160, keys + (head + 2) * 40, MLXR_CACHE_F32, 40);
    }
}

// Attention of a sequence's new token to its keys [first, last), of some KV heads: sums weighted by 2^(score - maximum)
// into partial result `part` of this thread's scratch.
static void attend_decode_f66d18eb_attend(mlxr_worker *w, const mlxr_batch *b, int seq, int first, int last, int first_head, int last_head,
        const float *qkv, const float *rope_table, int layer, int part) {
    float *const queries = (float *)(w->scratch + 0);  // [6, 48]
    float *const values = (float *)(w->scratch + 1152);  // [2, 6, 48]
    float *const maxima = (float *)(w->scratch + 3456);  // [2, 2, 16]
    float *const sums = (float *)(w->scratch + 3712);  // [2, 2, 16]
    float *const scores = (float *)(w->scratch + 3968);  // [96, 16]

    float *own_values = values + part * 288;
    float *own_maxima = maxima + part * 32, *own_sums = sums + part * 32;
    const uint8_t *k_rows = w->model->k_arena + (size_t)layer * 1280u;
    const uint8_t *v_rows = w->model->v_arena + (size_t)layer * 1280u;
    const int32_t *table = b->block_tables + (size_t)seq * b->max_blocks;
    const float *input = qkv + (size_t)seq * 400, *rotation = rope_table + (size_t)seq * 40;
    size_t offsets[2][64];
    int now = 0, count = mlxr_least(last - first, 64);
    cache_offsets(offsets[now], table, first, count, 4, 2560u, 320u);
    const int begin = first_head * 160, end = last_head * 160;
    cache_ahead start = {k_rows, v_rows, offsets[now], begin, end, count, 0, begin};
    cache_prefetch(&start, 384);
    for (int h = first_head * 3; h < last_head * 3; h++) {
        rope_head(queries + h * 48, input + h * 40, rotation, 40, 40, 0, 0.22811012f);
        memset(own_values + h * 48, 0, 192);
    }
    for (int i = first_head * 16; i < last_head * 16; i++) own_maxima[i] = MLXR_LOWEST, own_sums[i] = 0.0f;
    for (int at = first; at < last; at += 64) {
        const int next_count = mlxr_least(last - at - count, 64);
        if (next_count > 0) cache_offsets(offsets[!now], table, at + count, next_count, 4, 2560u, 320u);
        cache_ahead ahead = {k_rows, v_rows, offsets[!now], begin, end, next_count, 0, begin};
        for (int head = first_head; head < last_head; head++) {
            const int h = head * 3, state = head * 16;
            const uint8_t *keys = k_rows + head * 160, *summed = v_rows + head * 160;
            attend_decode_tile(own_values + h * 48, own_maxima + state, own_sums + state, scores, queries + h * 48, 3,
                    keys, summed, offsets[now], &ahead, count, MLXR_CACHE_F32, 40, 48);
        }
        now = !now;
        count = next_count;
    }
    for (int head = first_head; head < last_head; head++) attend_decode_close(own_sums + head * 16, 3);
}

// Results of some query heads of a sequence, from the partial results of threads [first, last]. `first_part` is the first
// one's; every other thread's range begins with this sequence.
static void attend_decode_f66d18eb_finish(mlxr_worker *w, int seq, int first_head, int last_head, int first, int last, int first_part,
        float *out) {
    for (int h = first_head; h < last_head; h++) {
        float *result = out + (size_t)seq * 240 + h * 40;
        float merged[48] = {0}, largest = MLXR_LOWEST, total = 0.0f;
        for (int t = first; t <= last; t++) {
    float *const values = (float *)(w->model->workers[t].scratch + 1152);  // [2, 6, 48]
    float *const maxima = (float *)(w->model->workers[t].scratch + 3456);  // [2, 2, 16]
    float *const sums = (float *)(w->model->workers[t].scratch + 3712);  // [2, 2, 16]

            const int part = t == first ? first_part : 0;
            const int group = h / 3, place = (part * 2 + group) * 16;
            const float maximum = maxima[place + h % 3];
            const float now = maximum > largest ? maximum : largest;
            const float keep = f32_exp2_negative1(largest - now), weight = f32_exp2_negative1(maximum - now);
            const float *own = values + (part * 6 + h) * 48;
            for (int d = 0; d < 40; d++) merged[d] = merged[d] * keep + own[d] * weight;
            total = total * keep + sums[place + h % 3] * weight;
            largest = now;
        }
        for (int d = 0; d < 40; d++) result[d] = merged[d] / total;
    }
}

static void attend_decode_f66d18eb(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer, float *out) {
    int64_t units = 0;
    for (int seq = 0; seq < b->seqs; seq++) units += attend_decode_f66d18eb_units(b, seq);
    if (w->threads > 1 && units < (int64_t)4 * w->threads) {
        int item, last;
        mlxr_share(w, b->seqs * 2, &item, &last);
        for (; item < last; item++) {
            const int seq = item / 2, head = item % 2;
            attend_decode_f66d18eb_store(w, b, seq, head, head + 1, qkv, rope_table, layer);
            attend_decode_f66d18eb_attend(w, b, seq, attend_decode_f66d18eb_first(b, seq), b->context_lens[seq], head, head + 1, qkv, rope_table, layer, 0);
            attend_decode_f66d18eb_finish(w, seq, head * 3, (head + 1) * 3, w->tid, w->tid, 0, out);
        }
        return;
    }
    const int64_t first = units * w->tid / w->threads, last = units * (w->tid + 1) / w->threads;
    int64_t start = 0;
    for (int seq = 0; seq < b->seqs; seq++) {
        const int64_t end = start + attend_decode_f66d18eb_units(b, seq);
        if (first < end && last > start) {
            const int part = first < start, origin = attend_decode_f66d18eb_first(b, seq), length = b->context_lens[seq];
            const int from = first > start ? origin + 16 * (int)(first - start) : origin;
            const int to = last < end ? origin + 16 * (int)(last - start) : length;
            if (to == length) attend_decode_f66d18eb_store(w, b, seq, 0, 2, qkv, rope_table, layer);
            attend_decode_f66d18eb_attend(w, b, seq, from, to, 0, 2, qkv, rope_table, layer, part);
            if (first <= start && last >= end) attend_decode_f66d18eb_finish(w, seq, 0, 6, w->tid, w->tid, part, out);
        }
        start = end;
    }
    if (w->threads == 1) return;
    mlxr_barrier(w);
    // Sequences of several threads: everyone merges a share of the heads.
    int first_head, last_head;
    mlxr_share(w, 6, &first_head, &last_head);
    start = 0;
    for (int seq = 0; seq < b->seqs; seq++) {
        const int64_t end = start + attend_decode_f66d18eb_units(b, seq);
        // Thread t has units [units * t / threads, units * (t + 1) / threads).
        const int from = (int)(((start + 1) * w->threads - 1) / units), to = (int)((end * w->threads - 1) / units);
        if (from < to)
            attend_decode_f66d18eb_finish(w, seq, first_head, last_head, from, to, units * from / w->threads < start, out);
        start = end;
    }
}

// o: out = x @ W.T + residual
//   x        [tokens, 240] f32
//   w0       [48, 240] bf16
//   residual [tokens, 48] f32
//   out      [tokens, 48] f32
static void o_365148cb(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *residual, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = NULL,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 240,
        .eps = 0.0f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &bf16_240,
            .w = w0,
            .rows = 48,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = residual,
        .width = 48,
        .finish = finish_residual,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_HALF, MLXR_ROWS_FAST, &output);
}

// gate_up: out = silu(rms_norm(x) @ w0.T) * (rms_norm(x) @ w1.T)
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [88, 48] bf16
//   w1       [88, 48] bf16
//   out      [tokens, 88] f32
static void gate_up_fcedefba(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 48,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &bf16_48,
            .w = w0,
            .up_matrix = &bf16_48,
            .up = w1,
            .rows = 88,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 88,
        .finish = finish_silu,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_HALF, MLXR_ROWS_FAST, &output);
}

// down: out = x @ W.T + residual
//   x        [tokens, 88] f32
//   w0       [48, 88] bf16
//   residual [tokens, 48] f32
//   out      [tokens, 48] f32
static void down_d5ba882a(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *residual, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = NULL,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 88,
        .eps = 0.0f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &bf16_88,
            .w = w0,
            .rows = 48,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = residual,
        .width = 48,
        .finish = finish_residual,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_HALF, MLXR_ROWS_FAST, &output);
}

// logits: out = rms_norm(x[logit_rows]) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [61, 48] bf16
//   out      [rows, 61] f32
static void logits_2432459a(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = b->logit_rows,
        .rows = b->rows,
        .columns = 48,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &bf16_48,
            .w = w0,
            .rows = 61,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 61,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_HALF, MLXR_ROWS_FAST, &output);
}

// Prefill: K is rotated, then K and V of each token go to the token's slot. Threads split the tokens.
//   qkv         [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   rope_table  [tokens, 40] f32: cosines, then sines
//   K, V        [40, 2, 4, 2, 40] f32
static void cache_write_8e908584(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const float *keys = qkv + (size_t)t * 400 + 240;
        const float *rotation = rope_table + (size_t)t * 40;
        const size_t row = (size_t)layer * 1280u + (size_t)(b->slots[t] / 4) * 2560u + (size_t)(b->slots[t] % 4) * 320u;
        for (int head = 0; head < 2; head++) {
            float rotated[48];
            rope_head(rotated, keys + head * 40, rotation, 40, 40, 0, 1.0f);
            cache_store(w->model->k_arena + row + head * 160, rotated, MLXR_CACHE_F32, 40);
            cache_store(w->model->v_arena + row + head * 160, keys + (head + 2) * 40, MLXR_CACHE_F32, 40);
        }
    }
}

// Prefill: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
//
// An item is a tile of 32 query tokens of one sequence with the 3 query heads on one KV head: 96 columns (token, query
// head), one a lane. It walks the context 64 keys at a time: K of the tile is widened to f32 in scratch, scores are
// K x queries, the softmax runs down each lane, and the values are V^T x weights. So nothing is summed across lanes.
// Threads take adjacent items of equal cost in all.
// Source: FlashAttention-2 (Dao 2023), with K and V gathered through the block table.
//   qkv         [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   rope_table  [tokens, 40] f32: cosines, then sines
//   K, V        [40, 2, 4, 2, 40] f32
//   out         [tokens, 240] f32

// Query tokens [first, last) of a sequence; the first is its token `start` and has `position`.
typedef struct {
    int seq, head, first, last, position, begin;
} attend_prefill_d094e7ce_item;

// Columns [column, column + 16) of an item as rows [16][48]; those past the last query are zeros that see what the
// last token sees.
static void attend_prefill_d094e7ce_queries(const attend_prefill_d094e7ce_item *item, int column, const float *qkv, const float *rope_table, float *rows,
        int32_t *positions) {
    for (int i = 0; i < 16; i++) {
        const int t = item->first + (column + i) / 3, h = item->head * 3 + (column + i) % 3;
        positions[column + i] = item->position + mlxr_least(t, item->last - 1) - item->first;
        if (t < item->last)
            rope_head(rows + i * 48, qkv + (size_t)t * 400 + h * 40, rope_table + (size_t)t * 40, 40, 40, 0, 0.22811012f);
        else
            memset(rows + i * 48, 0, 192);
    }
}

// Values [40][96] over their sums, to the heads' places.
static void attend_prefill_d094e7ce_results(const attend_prefill_d094e7ce_item *item, const float *values, float *sums, float *out) {
    const int queried = (item->last - item->first) * 3;
    for (int column = 0; column < queried; column += 16) {
        float *to[16];
        for (int i = 0; i < 16; i++) {
            const int t = item->first + (column + i) / 3, h = item->head * 3 + (column + i) % 3;
            to[i] = out + (size_t)t * 240 + h * 40;
            sums[column + i] = 1.0f / sums[column + i];
        }
        attend_results(to, mlxr_least(queried - column, 16), values + column, 96, sums + column, 40);
    }
}

static void attend_prefill_d094e7ce_attend(mlxr_worker *w, const mlxr_batch *b, const attend_prefill_d094e7ce_item *item, const float *qkv, const float *rope_table,
        int layer, float *out) {
    float *const rows = (float *)(w->scratch + 0);  // [16, 48]
    float *const queries = (float *)(w->scratch + 3072);  // [48, 96]
    float *const scores = (float *)(w->scratch + 21504);  // [64, 96]
    float *const values = (float *)(w->scratch + 46080);  // [48, 96]
    float *const keys = (float *)(w->scratch + 64512);  // [64, 48]
    float *const keep = (float *)(w->scratch + 76800);  // [96]
    float *const maxima = (float *)(w->scratch + 77184);  // [96]
    float *const sums = (float *)(w->scratch + 77568);  // [96]
    int32_t *const positions = (int32_t *)(w->scratch + 77952);  // [96]

    const uint8_t *k_rows = w->model->k_arena + (size_t)layer * 1280u + item->head * 160;
    const uint8_t *v_rows = w->model->v_arena + (size_t)layer * 1280u + item->head * 160;
    const int32_t *table = b->block_tables + (size_t)item->seq * b->max_blocks;
    const int queried = (item->last - item->first) * 3, columns = (queried + 15) / 16 * 16;
    for (int i = 0; i < columns; i += 16) {
        attend_prefill_d094e7ce_queries(item, i, qkv, rope_table, rows, positions);
        for (int d = 0; d < 40; d++)
            for (int v = 0; v < 16; v++) queries[d * 96 + i + v] = rows[v * 48 + d];
    }
    for (int i = 0; i < columns; i++) maxima[i] = MLXR_LOWEST, sums[i] = 0.0f;
    for (int d = 0; d < 40; d++) memset(values + d * 96, 0, (size_t)columns * 4);

    const int end = item->position + item->last - item->first;
    for (int at = item->begin; at < end; at += 64) {
        const int count = mlxr_least(end - at, 64), rounded = (count + 15) / 16 * 16;
        size_t offsets[64];
        cache_offsets(offsets, table, at, count, 4, 2560u, 320u);
        for (int j = 0; j < rounded; j++) cache_load(keys + j * 48, k_rows + offsets[j], MLXR_CACHE_F32, 40);
        attend_product(scores, NULL, keys, 48, 1, queries, 96, 40, rounded, columns);
        if (at + count - 1 > item->position)
            attend_mask(scores, 96, positions, at, count, columns, 0);
        attend_softmax_columns(scores, 96, count, columns, maxima, sums, keep);
        for (int j = 0; j < count; j++) cache_load(keys + j * 48, v_rows + offsets[j], MLXR_CACHE_F32, 40);
        attend_product(values, keep, keys, 1, 48, scores, 96, count, 40, columns);
    }

    attend_prefill_d094e7ce_results(item, values, sums, out);
}

// The tile of a sequence's query tokens from `first` on, and what an item of it costs: keys times columns.
static int64_t attend_prefill_d094e7ce_tile(const mlxr_batch *b, int seq, int first, attend_prefill_d094e7ce_item *item) {
    const int start = b->query_start[seq], stop = b->query_start[seq + 1];
    item->seq = seq;
    item->first = first;
    item->last = mlxr_least(first + 32, stop);
    item->position = b->context_lens[seq] - (stop - start) + (first - start);
    item->begin = 0;
    const int keys = item->position + item->last - item->first - item->begin;
    return (int64_t)(keys + 16) * (((item->last - item->first) * 3 + 15) / 16);
}

static void attend_prefill_d094e7ce(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer, float *out) {
    attend_prefill_d094e7ce_item item;
    int64_t all = 0, done = 0;
    for (int seq = 0; seq < b->seqs; seq++)
        for (int t = b->query_start[seq]; t < b->query_start[seq + 1]; t += 32)
            all += 2 * attend_prefill_d094e7ce_tile(b, seq, t, &item);
    for (int seq = 0; seq < b->seqs; seq++)
        for (int head = 0; head < 2; head++)
            for (int t = b->query_start[seq]; t < b->query_start[seq + 1]; t += 32) {
                const int64_t cost = attend_prefill_d094e7ce_tile(b, seq, t, &item);
                item.head = head;
                // The thread in whose share of all cost the item's middle lies.
                if ((2 * done + cost) * w->threads / (2 * all) == w->tid)
                    attend_prefill_d094e7ce_attend(w, b, &item, qkv, rope_table, layer, out);
                done += cost;
            }
}

// Copy-on-write: copies whole blocks of the arena, every layer, before the step that writes into the copies.
//   pairs  [count, 2] i32: source and target block, copied in order
//   K, V   [40, 2, 4, 2, 40] f32
static void copy_blocks_9b68316f(mlxr_model *m, const int32_t *pairs, int count) {
    uint8_t *arenas[2] = {m->k_arena, m->v_arena};
    for (int i = 0; i < 2 * count; i++) {
        const uint8_t *source = arenas[i % 2] + (size_t)pairs[i / 2 * 2] * 2560u;
        uint8_t *target = arenas[i % 2] + (size_t)pairs[i / 2 * 2 + 1] * 2560u;
        memcpy(target, source, 2560u);
    }
}


// ==== programs
// t: tensors, a: activations
static void mlxr_decode(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    if (launches) ++launches[0];
    rope_table_76cafd88(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    if (launches) ++launches[1];
    embed_41531896(w, b, t[0], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 768), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[3];
    attend_decode_f66d18eb(w, b, (float *)(a + 1536), (float *)(a + 0), 0, (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 7936), t[2], (float *)(a + 768), (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 1536), (const float *)t[3], t[17], t[18], (float *)(a + 2304));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 2304), t[4], (float *)(a + 1536), (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 768), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[3];
    attend_decode_f66d18eb(w, b, (float *)(a + 1536), (float *)(a + 0), 1, (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 7936), t[6], (float *)(a + 768), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 0), (const float *)t[7], t[19], t[20], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 768), t[8], (float *)(a + 0), (float *)(a + 2304));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[7];
        logits_2432459a(w, b, (float *)(a + 2304), (const float *)t[9], t[10], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    if (launches) ++launches[0];
    rope_table_76cafd88(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    if (launches) ++launches[1];
    embed_41531896(w, b, t[0], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 5120), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    if (launches) ++launches[8];
    cache_write_8e908584(w, b, (float *)(a + 11264), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[9];
    attend_prefill_d094e7ce(w, b, (float *)(a + 11264), (float *)(a + 0), 0, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 62464), t[2], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 11264), (const float *)t[3], t[17], t[18], (float *)(a + 17408));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 17408), t[4], (float *)(a + 11264), (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 5120), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    if (launches) ++launches[8];
    cache_write_8e908584(w, b, (float *)(a + 11264), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[9];
    attend_prefill_d094e7ce(w, b, (float *)(a + 11264), (float *)(a + 0), 1, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 62464), t[6], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 11264), (const float *)t[7], t[19], t[20], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 0), t[8], (float *)(a + 11264), (float *)(a + 17408));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[7];
        logits_2432459a(w, b, (float *)(a + 17408), (const float *)t[9], t[10], b->logits);
    }
}

