// Prefill: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
//
// An item is a tile of 32 query tokens of one sequence with the 3 query heads on one KV head: 96 columns (token, query
// head), one to a lane. It walks the context 64 keys at a time: K of the tile is widened to f32 in scratch, scores are
// K x queries, the softmax runs down each lane, and the values are V^T x weights. So nothing is summed across lanes.
// Each thread takes neighbouring items; all threads' items together cost the same. Tiles of keys begin at multiples of
// their size, and a column's arithmetic does not depend on the others: so results do not depend on how a sequence is cut
// into steps, or on what else is in the batch.
// Source: FlashAttention-2 (Dao 2023), with K and V gathered through the block table.
//   qkv         [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   rope_table  [tokens, 40] f32: cosines, then sines
//   K, V        [blocks, 4, 4, 2, 40] f32
//   sinks       [6] f32: one more logit of each query head
//   out         [tokens, 240] f32

// Query tokens [first, last) of a sequence, of which the first has `position`, and KV heads from `head` on.
typedef struct {
    int seq, head, heads, first, last, position, begin;
} attend_prefill_903fac1a_item;

// Columns [column, column + 16) of an item as rows [16][48]. Columns past the last query are zeros, with the last
// token's position.
static void attend_prefill_903fac1a_queries(const attend_prefill_903fac1a_item *item, int column, const float *qkv, const float *rope_table, float *rows,
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
static void attend_prefill_903fac1a_results(const attend_prefill_903fac1a_item *item, const float *values, float *sums, float *out) {
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

enum { attend_prefill_903fac1a_keys = 64, attend_prefill_903fac1a_reading = 0 };

// An item of few columns.
static void attend_prefill_903fac1a_few(mlxr_worker *w, const mlxr_batch *b, const attend_prefill_903fac1a_item *item, const float *qkv, const float *rope_table,
        int layer, const float *sinks, float *out) {
    float *const rows = (float *)(w->scratch + 0);  // [16, 48]
    float *const queries = (float *)(w->scratch + 3072);  // [48, 96]
    float *const scores = (float *)(w->scratch + 21504);  // [64, 96]
    float *const values = (float *)(w->scratch + 46080);  // [48, 96]
    float *const keys = (float *)(w->scratch + 64512);  // [64, 48]
    float *const maxima = (float *)(w->scratch + 77184);  // [96]
    float *const sums = (float *)(w->scratch + 77568);  // [96]
    int32_t *const positions = (int32_t *)(w->scratch + 77952);  // [96]

    float *const turned = queries;  // [48][64]
    const uint8_t *k_rows = w->model->stores[0] + (size_t)layer * 1280u + item->head * 160;
    const uint8_t *v_rows = w->model->stores[1] + (size_t)layer * 1280u + item->head * 160;
    const int32_t *table = b->groups[0].tables + (size_t)item->seq * b->groups[0].columns;
    const int columns = (item->last - item->first) * 3;
    attend_prefill_903fac1a_queries(item, 0, qkv, rope_table, rows, positions);
    for (int i = 0; i < columns; i++) maxima[i] = attend_sink(sinks[item->head * 3 + i % 3]), sums[i] = 1.0f;
    memset(values, 0, MLXR_FEW_QUERIES * 192);

    const int end = item->position + item->last - item->first;
    for (int at = item->begin; at < end; at += 64) {
        const int count = mlxr_least(end - at, 64), rounded = (count + 15) / 16 * 16;
        size_t offsets[64];
        cache_offsets(offsets, table, at, count, 4, 5120u, 320u);
        attend_turned(turned, 64, k_rows, offsets, rounded, MLXR_CACHE_F32, 40);
        attend_rows_product(scores, 64, 1, rows, 48, turned, 64, 40, columns, rounded);
        for (int i = 0; i < columns; i++) {
            const int seen = mlxr_least(positions[i] + 1 - at, count);
            const int hidden = mlxr_least(positions[i] - 8 > at ? positions[i] - 8 - at : 0, count);
            const float kept = attend_softmax_row(scores + i * 64, hidden, seen > 0 ? seen : 0, count, maxima + i, sums + i);
            for (int d = 0; d < 48; d++) values[i * 48 + d] *= kept;
        }
        for (int j = 0; j < count; j++) cache_load(keys + j * 48, v_rows + offsets[j], MLXR_CACHE_F32, 40);
        attend_rows_product(values, 48, 0, scores, 64, keys, 48, count, columns, 48);
    }

    for (int i = 0; i < columns; i++) {
        const int t = item->first + i / 3, h = item->head * 3 + i % 3;
        float *to = out + (size_t)t * 240 + h * 40;
        const float factor = 1.0f / sums[i];
        for (int d = 0; d < 40; d++) to[d] = values[i * 48 + d] * factor;
    }
}

static void attend_prefill_903fac1a_attend(mlxr_worker *w, const mlxr_batch *b, const attend_prefill_903fac1a_item *item, const float *qkv, const float *rope_table,
        int layer, const float *sinks, float *out) {
    float *const rows = (float *)(w->scratch + 0);  // [16, 48]
    float *const queries = (float *)(w->scratch + 3072);  // [48, 96]
    float *const scores = (float *)(w->scratch + 21504);  // [64, 96]
    float *const values = (float *)(w->scratch + 46080);  // [48, 96]
    float *const keys = (float *)(w->scratch + 64512);  // [64, 48]
    float *const keep = (float *)(w->scratch + 76800);  // [96]
    float *const maxima = (float *)(w->scratch + 77184);  // [96]
    float *const sums = (float *)(w->scratch + 77568);  // [96]
    int32_t *const positions = (int32_t *)(w->scratch + 77952);  // [96]

    const uint8_t *k_rows = w->model->stores[0] + (size_t)layer * 1280u + item->head * 160;
    const uint8_t *v_rows = w->model->stores[1] + (size_t)layer * 1280u + item->head * 160;
    const int32_t *table = b->groups[0].tables + (size_t)item->seq * b->groups[0].columns;
    const int queried = (item->last - item->first) * 3, columns = (queried + 15) / 16 * 16;
    if (queried <= MLXR_FEW_QUERIES) {
        attend_prefill_903fac1a_few(w, b, item, qkv, rope_table, layer, sinks, out);
        return;
    }
    for (int i = 0; i < columns; i += 16) {
        attend_prefill_903fac1a_queries(item, i, qkv, rope_table, rows, positions);
        attend_turn(queries + i, 96, rows, 48);
    }
    for (int i = 0; i < columns; i++) maxima[i] = attend_sink(sinks[item->head * 3 + i % 3]), sums[i] = 1.0f;
    for (int d = 0; d < 40; d++) memset(values + d * 96, 0, (size_t)columns * 4);

    const int end = item->position + item->last - item->first;
    for (int at = item->begin; at < end; at += 64) {
        const int count = mlxr_least(end - at, 64), rounded = (count + 15) / 16 * 16;
        size_t offsets[64];
        cache_offsets(offsets, table, at, count, 4, 5120u, 320u);
        for (int j = 0; j < rounded; j++) cache_load(keys + j * 48, k_rows + offsets[j], MLXR_CACHE_F32, 40);
        attend_product(scores, NULL, keys, 48, 1, queries, 96, 40, rounded, columns);
        if (at + count - 1 > item->position || (end - 1) - 8 > at)
            attend_mask(scores, 96, positions, at, count, columns, 9);
        attend_softmax_columns(scores, 96, count, columns, maxima, sums, keep);
        for (int j = 0; j < count; j++) cache_load(keys + j * 48, v_rows + offsets[j], MLXR_CACHE_F32, 40);
        attend_product(values, keep, keys, 1, 48, scores, 96, count, 40, columns);
    }

    attend_prefill_903fac1a_results(item, values, sums, out);
}

// The tile of a sequence's query tokens from `first` on, and what an item of it costs: keys times columns.
static int64_t attend_prefill_903fac1a_tile(const mlxr_batch *b, int seq, int first, attend_prefill_903fac1a_item *item) {
    const int start = b->query_start[seq], stop = b->query_start[seq + 1];
    item->seq = seq;
    item->first = first;
    item->last = mlxr_least(first + 32, stop);
    item->position = b->context_lens[seq] - (stop - start) + (first - start);
    const int first_key = item->position - 8 > 0 ? item->position - 8 : 0;
    item->begin = first_key / attend_prefill_903fac1a_keys * attend_prefill_903fac1a_keys;
    const int keys = item->position + item->last - item->first - item->begin;
    return (int64_t)(keys + 16) * (attend_prefill_903fac1a_reading + ((item->last - item->first) * 3 + 15) / 16);
}

static void attend_prefill_903fac1a(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer, const float *sinks, float *out) {
    attend_prefill_903fac1a_item item;
    int64_t all = 0, done = 0;
    for (int seq = 0; seq < b->seqs; seq++)
        for (int t = b->query_start[seq]; t < b->query_start[seq + 1]; t += 32)
            all += 2 * attend_prefill_903fac1a_tile(b, seq, t, &item);
    for (int seq = 0; seq < b->seqs; seq++) {
        int next = 0;  // the first head that is not yet in an item
        for (int head = 0; head < 2; head++)
            for (int t = b->query_start[seq]; t < b->query_start[seq + 1]; t += 32) {
                const int64_t cost = attend_prefill_903fac1a_tile(b, seq, t, &item);
                // The thread in whose share of all cost the item's middle lies.
                if (head >= next && (2 * done + cost) * w->threads / (2 * all) == w->tid) {
                    item.head = head;
                    item.heads = 1;
                    attend_prefill_903fac1a_attend(w, b, &item, qkv, rope_table, layer, sinks, out);
                }
                done += cost;
            }
    }
}
