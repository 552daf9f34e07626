// Prefill: K is rotated, then K and V of each token go to the token's slot. Threads split the tokens.
//   qkv         [tokens, 384] f32: 8 query, 2 key, 2 value heads of 32
//   rope_table  [tokens, 32] f32: cosines, then sines
//   K, V        [blocks, 2, 4, 2, 32] f32
static void cache_write_c0ac821a(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const float *keys = qkv + (size_t)t * 384 + 256;
        const float *rotation = rope_table + (size_t)t * 32;
        const size_t row = (size_t)layer * 1024u + (size_t)(b->groups[0].slots[t] / 4) * 2048u + (size_t)(b->groups[0].slots[t] % 4) * 256u;
        for (int head = 0; head < 2; head++) {
            float rotated[32];
            rope_head(rotated, keys + head * 32, rotation, 32, 32, 0, 1.0f);
            cache_store(w->model->stores[0] + row + head * 128, rotated, MLXR_CACHE_F32, 32);
            cache_store(w->model->stores[1] + row + head * 128, keys + (head + 2) * 32, MLXR_CACHE_F32, 32);
        }
    }
}
