// Decode: RoPE, cache write and attention of one new token of each sequence.
//
// A thread walks its keys a tile of 64 at a time, for all KV heads in turn: so it reads the arena in the order of its
// bytes, and each of them once. K, then V, of a tile and head are widened to f32 in scratch, and serve all 1 query
// heads on that KV head. Where there is much to read, threads share the keys of all sequences evenly, in units of 16; where
// several threads share a sequence, each makes a partial result, and these are merged (split-KV, as in FlashDecoding).
// Else they share the KV heads, and need not wait for each other.
// The thread that has a sequence's last keys stores the new token's K and V first; no other reads them.
//   qkv         [tokens, 768] f32: 8 query, 8 key, 8 value heads of 32
//   rope_table  [tokens, 32] f32: cosines, then sines
//   K, V        [blocks, 2, 4, 8, 32] f32
//   out         [tokens, 256] f32

// Keys that a sequence sees: [first, context_len).
static inline int attend_decode_84616112_first(const mlxr_batch *b, int seq) {
    return 0;
}

static inline int attend_decode_84616112_units(const mlxr_batch *b, int seq) {
    return (b->context_lens[seq] - attend_decode_84616112_first(b, seq) + 15) / 16;
}

// K and V of a sequence's new token, of some KV heads, into the arena.
static void attend_decode_84616112_store(mlxr_worker *w, const mlxr_batch *b, int seq, int first_head, int last_head, const float *qkv,
        const float *rope_table, int layer) {
    const float *keys = qkv + (size_t)seq * 768 + 256;
    const float *rotation = rope_table + (size_t)seq * 32;
    const size_t row = (size_t)layer * 4096u + (size_t)(b->groups[0].slots[seq] / 4) * 8192u + (size_t)(b->groups[0].slots[seq] % 4) * 1024u;
    for (int head = first_head; head < last_head; head++) {
        float rotated[32];
        rope_head(rotated, keys + head * 32, rotation, 32, 32, 1, 1.0f);
        cache_store(w->model->stores[0] + row + head * 128, rotated, MLXR_CACHE_F32, 32);
        cache_store(w->model->stores[1] + row + head * 128, keys + (head + 8) * 32, MLXR_CACHE_F32, 32);
    }
}

// Attention of a sequence's new token to its keys [first, last), of some KV heads: sums weighted by 2^(score - maximum)
// into partial result `part` of this thread's scratch.
static void attend_decode_84616112_attend(mlxr_worker *w, const mlxr_batch *b, int seq, int first, int last, int first_head, int last_head,
        const float *qkv, const float *rope_table, int layer, int part) {
    float *const queries = (float *)(w->scratch + 0);  // [8, 32]
    float *const values = (float *)(w->scratch + 1024);  // [2, 8, 32]
    float *const maxima = (float *)(w->scratch + 3072);  // [2, 8, 16]
    float *const sums = (float *)(w->scratch + 4096);  // [2, 8, 16]
    float *const scores = (float *)(w->scratch + 5120);  // [96, 16]

    float *own_values = values + part * 256;
    float *own_maxima = maxima + part * 128, *own_sums = sums + part * 128;
    const uint8_t *k_rows = w->model->stores[0] + (size_t)layer * 4096u;
    const uint8_t *v_rows = w->model->stores[1] + (size_t)layer * 4096u;
    const int32_t *table = b->groups[0].tables + (size_t)seq * b->groups[0].columns;
    const float *input = qkv + (size_t)seq * 768, *rotation = rope_table + (size_t)seq * 32;
    size_t offsets[2][64];
    int now = 0, count = mlxr_least(last - first, 64);
    cache_offsets(offsets[now], table, first, count, 4, 8192u, 1024u);
    const int begin = first_head * 128, end = last_head * 128;
    cache_ahead start = {k_rows, v_rows, offsets[now], begin, end, count, 0, begin};
    cache_prefetch(&start, 1088);
    for (int h = first_head * 1; h < last_head * 1; h++) {
        rope_head(queries + h * 32, input + h * 32, rotation, 32, 32, 1, 0.255034864f);
        memset(own_values + h * 32, 0, 128);
    }
    for (int i = first_head * 16; i < last_head * 16; i++) own_maxima[i] = MLXR_LOWEST, own_sums[i] = 0.0f;
    for (int at = first; at < last; at += 64) {
        const int next_count = mlxr_least(last - at - count, 64);
        if (next_count > 0) cache_offsets(offsets[!now], table, at + count, next_count, 4, 8192u, 1024u);
        cache_ahead ahead = {k_rows, v_rows, offsets[!now], begin, end, next_count, 0, begin};
        for (int head = first_head; head < last_head; head++) {
            const int h = head * 1, state = head * 16;
            const uint8_t *keys = k_rows + head * 128, *summed = v_rows + head * 128;
            attend_decode_tile(own_values + h * 32, own_maxima + state, own_sums + state, scores, queries + h * 32, 1,
                    keys, summed, offsets[now], &ahead, count, 0.0f, MLXR_CACHE_F32, 32, 32);
        }
        now = !now;
        count = next_count;
    }
    for (int head = first_head; head < last_head; head++) attend_decode_close(own_sums + head * 16, 1);
}

// Results of some query heads of a sequence, from the partial results of threads [first, last]. `first_part` is the first
// one's; every other thread's range begins with this sequence.
static void attend_decode_84616112_finish(mlxr_worker *w, int seq, int first_head, int last_head, int first, int last, int first_part,
        float *out) {
    for (int h = first_head; h < last_head; h++) {
        float *result = out + (size_t)seq * 256 + h * 32;
        float merged[32] = {0}, largest = MLXR_LOWEST, total = 0.0f;
        for (int t = first; t <= last; t++) {
    float *const values = (float *)(w->model->workers[t].scratch + 1024);  // [2, 8, 32]
    float *const maxima = (float *)(w->model->workers[t].scratch + 3072);  // [2, 8, 16]
    float *const sums = (float *)(w->model->workers[t].scratch + 4096);  // [2, 8, 16]

            const int part = t == first ? first_part : 0;
            const int group = h / 1, place = (part * 8 + group) * 16;
            const float maximum = maxima[place + h % 1];
            const float now = maximum > largest ? maximum : largest;
            const float keep = f32_exp2_negative1(largest - now), weight = f32_exp2_negative1(maximum - now);
            const float *own = values + (part * 8 + h) * 32;
            for (int d = 0; d < 32; d++) merged[d] = merged[d] * keep + own[d] * weight;
            total = total * keep + sums[place + h % 1] * weight;
            largest = now;
        }
        for (int d = 0; d < 32; d++) result[d] = merged[d] / total;
    }
}

static void attend_decode_84616112(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer, float *out) {
    int64_t units = 0;
    for (int seq = 0; seq < b->seqs; seq++) units += attend_decode_84616112_units(b, seq);
    if (w->threads > 1 && units < (int64_t)8 * w->threads) {
        int item, last;
        mlxr_share(w, b->seqs * 8, &item, &last);
        for (; item < last; item++) {
            const int seq = item / 8, head = item % 8;
            attend_decode_84616112_store(w, b, seq, head, head + 1, qkv, rope_table, layer);
            attend_decode_84616112_attend(w, b, seq, attend_decode_84616112_first(b, seq), b->context_lens[seq], head, head + 1, qkv, rope_table, layer, 0);
            attend_decode_84616112_finish(w, seq, head * 1, (head + 1) * 1, w->tid, w->tid, 0, out);
        }
        return;
    }
    const int64_t first = units * w->tid / w->threads, last = units * (w->tid + 1) / w->threads;
    int64_t start = 0;
    for (int seq = 0; seq < b->seqs; seq++) {
        const int64_t end = start + attend_decode_84616112_units(b, seq);
        if (first < end && last > start) {
            const int part = first < start, origin = attend_decode_84616112_first(b, seq), length = b->context_lens[seq];
            const int from = first > start ? origin + 16 * (int)(first - start) : origin;
            const int to = last < end ? origin + 16 * (int)(last - start) : length;
            if (to == length) attend_decode_84616112_store(w, b, seq, 0, 8, qkv, rope_table, layer);
            attend_decode_84616112_attend(w, b, seq, from, to, 0, 8, qkv, rope_table, layer, part);
            if (first <= start && last >= end) attend_decode_84616112_finish(w, seq, 0, 8, w->tid, w->tid, part, out);
        }
        start = end;
    }
    if (w->threads == 1) return;
    mlxr_barrier(w);
    // Sequences of several threads: everyone merges a share of the heads.
    int first_head, last_head;
    mlxr_share(w, 8, &first_head, &last_head);
    start = 0;
    for (int seq = 0; seq < b->seqs; seq++) {
        const int64_t end = start + attend_decode_84616112_units(b, seq);
        // Thread t has units [units * t / threads, units * (t + 1) / threads).
        const int from = (int)(((start + 1) * w->threads - 1) / units), to = (int)((end * w->threads - 1) / units);
        if (from < to)
            attend_decode_84616112_finish(w, seq, first_head, last_head, from, to, units * from / w->threads < start, out);
        start = end;
    }
}
