// Prefill: K is rotated, then K and V of each token go to the token's slot. Threads split the tokens.
//   qkv         [tokens, 640] f32: 8 query, 1 key, 1 value heads of 64
//   rope_table  [tokens, 64] f32: cosines, then sines
//   K, V        [2, blocks, 1, 1, 64] f16
static void cache_write_b29dea84(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const float *keys = qkv + (size_t)t * 640 + 512;
        const float *rotation = rope_table + (size_t)t * 64;
        const size_t row = (size_t)layer * 20480u + (size_t)(b->groups[0].slots[t] / 1) * 128u + (size_t)(b->groups[0].slots[t] % 1) * 128u;
        for (int head = 0; head < 1; head++) {
            float rotated[64];
            rope_head(rotated, keys + head * 64, rotation, 64, 64, 0, 1.0f);
            cache_store(w->model->stores[0] + row + head * 128, rotated, MLXR_CACHE_F16, 64);
            cache_store(w->model->stores[1] + row + head * 128, keys + (head + 1) * 64, MLXR_CACHE_F16, 64);
        }
    }
}
