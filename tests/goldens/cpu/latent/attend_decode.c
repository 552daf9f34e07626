// Decode: attention of one new token of each sequence, whose row is stored, to rows of which the first 72 elements are
// the values.
//
// A thread walks its keys a tile of 64 at a time, for all KV heads in turn: so it reads the arena in the order of its
// bytes, and each of them once. K, then V, of a tile and head are widened to f32 in scratch, and serve all 6 query
// heads on that KV head. Where there is much to read, threads share the keys of all sequences evenly, in units of 16; where
// several threads share a sequence, each makes a partial result, and these are merged (split-KV, as in FlashDecoding).
//   qkv         [tokens, 528] f32: 6 query heads of 88
//   K, V        [blocks, 2, 4, 1, 88] f32
//   out         [tokens, 432] f32

// Keys that a sequence sees: [first, context_len).
static inline int attend_decode_6148303a_first(const mlxr_batch *b, int seq) {
    return 0;
}

static inline int attend_decode_6148303a_units(const mlxr_batch *b, int seq) {
    return (b->context_lens[seq] - attend_decode_6148303a_first(b, seq) + 15) / 16;
}

// Attention of a sequence's new token to its keys [first, last), of some KV heads: sums weighted by 2^(score - maximum)
// into partial result `part` of this thread's scratch.
static void attend_decode_6148303a_attend(mlxr_worker *w, const mlxr_batch *b, int seq, int first, int last, int first_head, int last_head,
        const float *qkv, const float *rope_table, int layer, int part) {
    float *const queries = (float *)(w->scratch + 0);  // [6, 96]
    float *const values = (float *)(w->scratch + 2304);  // [2, 6, 96]
    float *const maxima = (float *)(w->scratch + 6912);  // [2, 1, 16]
    float *const sums = (float *)(w->scratch + 7040);  // [2, 1, 16]
    float *const scores = (float *)(w->scratch + 7168);  // [96, 16]

    float *own_values = values + part * 576;
    float *own_maxima = maxima + part * 16, *own_sums = sums + part * 16;
    const uint8_t *k_rows = w->model->stores[0] + (size_t)layer * 1408u;
    const uint8_t *v_rows = w->model->stores[0] + (size_t)layer * 1408u;
    const int32_t *table = b->groups[0].tables + (size_t)seq * b->groups[0].columns;
    const float *input = qkv + (size_t)seq * 528, *rotation = rope_table + (size_t)seq * 0;
    size_t offsets[2][64];
    int now = 0, count = mlxr_least(last - first, 64);
    cache_offsets(offsets[now], table, first, count, 4, 2816u, 352u);
    const int begin = first_head * 352, end = last_head * 352;
    cache_ahead start = {k_rows, v_rows, offsets[now], begin, end, count, 0, begin};
    cache_prefetch(&start, 384);
    for (int h = first_head * 6; h < last_head * 6; h++) {
        rope_head(queries + h * 96, input + h * 88, rotation, 88, 0, 0, 0.22811012f);
        memset(own_values + h * 96, 0, 384);
    }
    for (int i = first_head * 16; i < last_head * 16; i++) own_maxima[i] = MLXR_LOWEST, own_sums[i] = 0.0f;
    for (int at = first; at < last; at += 64) {
        const int next_count = mlxr_least(last - at - count, 64);
        if (next_count > 0) cache_offsets(offsets[!now], table, at + count, next_count, 4, 2816u, 352u);
        cache_ahead ahead = {k_rows, v_rows, offsets[!now], begin, end, next_count, 0, begin};
        for (int head = first_head; head < last_head; head++) {
            const int h = head * 6, state = head * 16;
            const uint8_t *keys = k_rows + head * 352, *summed = v_rows + head * 352;
            attend_decode_rows(own_values + h * 96, own_maxima + state, own_sums + state, scores, queries + h * 96, 6,
                    keys, summed, offsets[now], offsets[now], &ahead, &ahead, count, 0.0f, MLXR_CACHE_F32, 88, 88, 72, 96);
        }
        now = !now;
        count = next_count;
    }
    for (int head = first_head; head < last_head; head++) attend_decode_close(own_sums + head * 16, 6);
}

// Results of some query heads of a sequence, from the partial results of threads [first, last]. `first_part` is the first
// one's; every other thread's range begins with this sequence.
static void attend_decode_6148303a_finish(mlxr_worker *w, int seq, int first_head, int last_head, int first, int last, int first_part,
        float *out) {
    for (int h = first_head; h < last_head; h++) {
        float *result = out + (size_t)seq * 432 + h * 72;
        float merged[96] = {0}, largest = MLXR_LOWEST, total = 0.0f;
        for (int t = first; t <= last; t++) {
    float *const values = (float *)(w->model->workers[t].scratch + 2304);  // [2, 6, 96]
    float *const maxima = (float *)(w->model->workers[t].scratch + 6912);  // [2, 1, 16]
    float *const sums = (float *)(w->model->workers[t].scratch + 7040);  // [2, 1, 16]

            const int part = t == first ? first_part : 0;
            const int group = h / 6, place = (part * 1 + group) * 16;
            const float maximum = maxima[place + h % 6];
            const float now = maximum > largest ? maximum : largest;
            const float keep = f32_exp2_negative1(largest - now), weight = f32_exp2_negative1(maximum - now);
            const float *own = values + (part * 6 + h) * 96;
            for (int d = 0; d < 72; d++) merged[d] = merged[d] * keep + own[d] * weight;
            total = total * keep + sums[place + h % 6] * weight;
            largest = now;
        }
        for (int d = 0; d < 72; d++) result[d] = merged[d] / total;
    }
}

static void attend_decode_6148303a(mlxr_worker *w, const mlxr_batch *b, const float *qkv, int layer, float *out) {
    const float *const rope_table = qkv;  // nothing is rotated
    int64_t units = 0;
    for (int seq = 0; seq < b->seqs; seq++) units += attend_decode_6148303a_units(b, seq);
    const int64_t first = units * w->tid / w->threads, last = units * (w->tid + 1) / w->threads;
    int64_t start = 0;
    for (int seq = 0; seq < b->seqs; seq++) {
        const int64_t end = start + attend_decode_6148303a_units(b, seq);
        if (first < end && last > start) {
            const int part = first < start, origin = attend_decode_6148303a_first(b, seq), length = b->context_lens[seq];
            const int from = first > start ? origin + 16 * (int)(first - start) : origin;
            const int to = last < end ? origin + 16 * (int)(last - start) : length;
            attend_decode_6148303a_attend(w, b, seq, from, to, 0, 1, qkv, rope_table, layer, part);
            if (first <= start && last >= end) attend_decode_6148303a_finish(w, seq, 0, 6, w->tid, w->tid, part, out);
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
        const int64_t end = start + attend_decode_6148303a_units(b, seq);
        // Thread t has units [units * t / threads, units * (t + 1) / threads).
        const int from = (int)(((start + 1) * w->threads - 1) / units), to = (int)((end * w->threads - 1) / units);
        if (from < to)
            attend_decode_6148303a_finish(w, seq, first_head, last_head, from, to, units * from / w->threads < start, out);
        start = end;
    }
}
