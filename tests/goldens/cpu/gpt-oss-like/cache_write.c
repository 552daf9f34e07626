// Prefill: K is rotated, then K and V of each token go to the token's slot. Threads split the tokens.
//   qkv         [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   rope_table  [tokens, 40] f32: cosines, then sines
//   K, V        [blocks, 4, 4, 2, 40] f32
static void cache_write_e2a1ebe2(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *rope_table, int layer) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const float *keys = qkv + (size_t)t * 400 + 240;
        const float *rotation = rope_table + (size_t)t * 40;
        const size_t row = (size_t)layer * 1280u + (size_t)(b->groups[0].slots[t] / 4) * 5120u + (size_t)(b->groups[0].slots[t] % 4) * 320u;
        for (int head = 0; head < 2; head++) {
            float rotated[48];
            rope_head(rotated, keys + head * 40, rotation, 40, 40, 0, 1.0f);
            cache_store(w->model->stores[0] + row + head * 160, rotated, MLXR_CACHE_F32, 40);
            cache_store(w->model->stores[1] + row + head * 160, keys + (head + 2) * 40, MLXR_CACHE_F32, 40);
        }
    }
}
