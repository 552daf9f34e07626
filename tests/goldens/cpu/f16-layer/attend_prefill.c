// Prefill: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
//
// An item is a tile of 12 query tokens of one sequence with the 8 query heads on one KV head: 96 columns (token, query
// head), one to a lane. It walks the context 64 keys at a time: K of the tile is widened to f32 in scratch, scores are
// K x queries, the softmax runs down each lane, and the values are V^T x weights. So nothing is summed across lanes.
// Each thread takes neighbouring items; all threads' items together cost the same. Tiles of keys begin at multiples of
// their size, and a column's arithmetic does not depend on the others: so results do not depend on how a sequence is cut
// into steps, or on what else is in the batch.
// Source: FlashAttention-2 (Dao 2023), with K and V gathered through the block table.
//   qkv         [tokens, 640] f32: 8 query, 1 key, 1 value heads of 64
//   rope_table  [tokens, 64] f32: cosines, then sines
//   K, V        [2, blocks, 1, 1, 64] f16
//   out         [tokens, 512] f32

// Query tokens [first, last) of a sequence, of which the first has `position`, and KV heads from `head` on.
typedef struct {
    int seq, head, heads, first, last, position, begin;
} attend_prefill_61cc2a84_item;

// Columns [column, column + 16) of an item as rows [16][64]. Columns past the last query are zeros, with the last
// token's position.
static void attend_prefill_61cc2a84_queries(const attend_prefill_61cc2a84_item *item, int column, const float *qkv, const float *rope_table, float *rows,
        int32_t *positions) {
    for (int i = 0; i < 16; i++) {
        const int t = item->first + (column + i) / 8, h = item->head * 8 + (column + i) % 8;
        positions[column + i] = item->position + mlxr_least(t, item->last - 1) - item->first;
        if (t < item->last)
            rope_head(rows + i * 64, qkv + (size_t)t * 640 + h * 64, rope_table + (size_t)t * 64, 64, 64, 0, 0.180336878f);
        else
            memset(rows + i * 64, 0, 256);
    }
}

// Values [64][96] over their sums, to the heads' places.
static void attend_prefill_61cc2a84_results(const attend_prefill_61cc2a84_item *item, const float *values, float *sums, float *out) {
    const int queried = (item->last - item->first) * 8;
    for (int column = 0; column < queried; column += 16) {
        float *to[16];
        for (int i = 0; i < 16; i++) {
            const int t = item->first + (column + i) / 8, h = item->head * 8 + (column + i) % 8;
            to[i] = out + (size_t)t * 512 + h * 64;
            sums[column + i] = 1.0f / sums[column + i];
        }
        attend_results(to, mlxr_least(queried - column, 16), values + column, 96, sums + column, 64);
    }
}

enum { attend_prefill_61cc2a84_keys = 64, attend_prefill_61cc2a84_reading = 0 };

// An item of few columns.
static void attend_prefill_61cc2a84_few(mlxr_worker *w, const mlxr_batch *b, const attend_prefill_61cc2a84_item *item, const float *qkv, const float *rope_table,
        int layer, float *out) {
    float *const rows = (float *)(w->scratch + 0);  // [16, 64]
    float *const queries = (float *)(w->scratch + 4096);  // [64, 96]
    float *const scores = (float *)(w->scratch + 28672);  // [64, 96]
    float *const values = (float *)(w->scratch + 53248);  // [64, 96]
    float *const keys = (float *)(w->scratch + 77824);  // [64, 64]
    float *const maxima = (float *)(w->scratch + 94592);  // [96]
    float *const sums = (float *)(w->scratch + 94976);  // [96]
    int32_t *const positions = (int32_t *)(w->scratch + 95360);  // [96]

    float *const turned = queries;  // [64][64]
    const uint8_t *k_rows = w->model->stores[0] + (size_t)layer * 20480u + item->head * 128;
    const uint8_t *v_rows = w->model->stores[1] + (size_t)layer * 20480u + item->head * 128;
    const int32_t *table = b->groups[0].tables + (size_t)item->seq * b->groups[0].columns;
    const int columns = (item->last - item->first) * 8;
    attend_prefill_61cc2a84_queries(item, 0, qkv, rope_table, rows, positions);
    for (int i = 0; i < columns; i++) maxima[i] = MLXR_LOWEST, sums[i] = 0.0f;
    memset(values, 0, MLXR_FEW_QUERIES * 256);

    const int end = item->position + item->last - item->first;
    for (int at = item->begin; at < end; at += 64) {
        const int count = mlxr_least(end - at, 64), rounded = (count + 15) / 16 * 16;
        size_t offsets[64];
        cache_offsets(offsets, table, at, count, 1, 128u, 128u);
        attend_turned(turned, 64, k_rows, offsets, rounded, MLXR_CACHE_F16, 64);
        attend_rows_product(scores, 64, 1, rows, 64, turned, 64, 64, columns, rounded);
        for (int i = 0; i < columns; i++) {
            const int seen = mlxr_least(positions[i] + 1 - at, count);
            const int hidden = mlxr_least(positions[i] - 6 > at ? positions[i] - 6 - at : 0, count);
            const float kept = attend_softmax_row(scores + i * 64, hidden, seen > 0 ? seen : 0, count, maxima + i, sums + i);
            for (int d = 0; d < 64; d++) values[i * 64 + d] *= kept;
        }
        for (int j = 0; j < count; j++) cache_load(keys + j * 64, v_rows + offsets[j], MLXR_CACHE_F16, 64);
        attend_rows_product(values, 64, 0, scores, 64, keys, 64, count, columns, 64);
    }

    for (int i = 0; i < columns; i++) {
        const int t = item->first + i / 8, h = item->head * 8 + i % 8;
        float *to = out + (size_t)t * 512 + h * 64;
        const float factor = 1.0f / sums[i];
        for (int d = 0; d < 64; d++) to[d] = values[i * 64 + d] * factor;
    }
}

static void attend_prefill_61cc2a84_attend(mlxr_worker *w, const mlxr_batch *b, const attend_prefill_61cc2a84_item *item, const float *qkv, const float *rope_table,
        int layer, float *out) {
    float *const rows = (float *)(w->scratch + 0);  // [16, 64]
    float *const queries = (float *)(w->scratch + 4096);  // [64, 96]
    float *const scores = (float *)(w->scratch + 28672);  // [64, 96]
    float *const values = (float *)(w->scratch + 53248);  // [64, 96]
    float *const keys = (float *)(w->scratch + 77824);  // [64, 64]
    float *const keep = (float *)(w->scratch + 94208);  // [96]
    float *const maxima = (float *)(w->scratch + 94592);  // [96]
    float *const sums = (float *)(w->scratch + 94976);  // [96]
    int32_t *const positions = (int32_t *)(w->scratch + 95360);  // [96]

    const uint8_t *k_rows = w->model->stores[0] + (size_t)layer * 20480u + item->head * 128;
    const uint8_t *v_rows = w->model->stores[1] + (size_t)layer * 20480u + item->head * 128;
    const int32_t *table = b->groups[0].tables + (size_t)item->seq * b->groups[0].columns;
    const int queried = (item->last - item->first) * 8, columns = (queried + 15) / 16 * 16;
    if (queried <= MLXR_FEW_QUERIES) {
        attend_prefill_61cc2a84_few(w, b, item, qkv, rope_table, layer, out);
        return;
    }
    for (int i = 0; i < columns; i += 16) {
        attend_prefill_61cc2a84_queries(item, i, qkv, rope_table, rows, positions);
        attend_turn(queries + i, 96, rows, 64);
    }
    for (int i = 0; i < columns; i++) maxima[i] = MLXR_LOWEST, sums[i] = 0.0f;
    for (int d = 0; d < 64; d++) memset(values + d * 96, 0, (size_t)columns * 4);

    const int end = item->position + item->last - item->first;
    for (int at = item->begin; at < end; at += 64) {
        const int count = mlxr_least(end - at, 64), rounded = (count + 15) / 16 * 16;
        size_t offsets[64];
        cache_offsets(offsets, table, at, count, 1, 128u, 128u);
        for (int j = 0; j < rounded; j++) cache_load(keys + j * 64, k_rows + offsets[j], MLXR_CACHE_F16, 64);
        attend_product(scores, NULL, keys, 64, 1, queries, 96, 64, rounded, columns);
        if (at + count - 1 > item->position || (end - 1) - 6 > at)
            attend_mask(scores, 96, positions, at, count, columns, 7);
        attend_softmax_columns(scores, 96, count, columns, maxima, sums, keep);
        for (int j = 0; j < count; j++) cache_load(keys + j * 64, v_rows + offsets[j], MLXR_CACHE_F16, 64);
        attend_product(values, keep, keys, 1, 64, scores, 96, count, 64, columns);
    }

    attend_prefill_61cc2a84_results(item, values, sums, out);
}

// The tile of a sequence's query tokens from `first` on, and what an item of it costs: keys times columns.
static int64_t attend_prefill_61cc2a84_tile(const mlxr_batch *b, int seq, int first, attend_prefill_61cc2a84_item *item) {
    const int start = b->query_start[seq], stop = b->query_start[seq + 1];
    item->seq = seq;
    item->first = first;
    item->last = mlxr_least(first + 12, stop);
    item->position = b->context_lens[seq] - (stop - start) + (first - start);
    const int first_key = item->position - 6 > 0 ? item->position - 6 : 0;
    item->begin = first_key / attend_prefill_61cc2a84_keys * attend_prefill_61cc2a84_keys;
    const int keys = item->position + item->last - item->first - item->begin;
    return (int64_t)(keys + 16) * (attend_prefill_61cc2a84_reading + ((item->last - item->first) * 8 + 15) / 16);
}

static void attend_prefill_61cc2a84(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer, float *out) {
    attend_prefill_61cc2a84_item item;
    int64_t all = 0, done = 0;
    for (int seq = 0; seq < b->seqs; seq++)
        for (int t = b->query_start[seq]; t < b->query_start[seq + 1]; t += 12)
            all += 1 * attend_prefill_61cc2a84_tile(b, seq, t, &item);
    for (int seq = 0; seq < b->seqs; seq++) {
        int next = 0;  // the first head that is not yet in an item
        for (int head = 0; head < 1; head++)
            for (int t = b->query_start[seq]; t < b->query_start[seq + 1]; t += 12) {
                const int64_t cost = attend_prefill_61cc2a84_tile(b, seq, t, &item);
                // The thread in whose share of all cost the item's middle lies.
                if (head >= next && (2 * done + cost) * w->threads / (2 * all) == w->tid) {
                    item.head = head;
                    item.heads = 1;
                    attend_prefill_61cc2a84_attend(w, b, &item, qkv, rope_table, layer, out);
                }
                done += cost;
            }
    }
}
