// The row of each token, [norm(latent) | rope(key)], to the token's slot, and the norm of the queries' latent. Threads split the tokens.
//   x           [tokens, 144] f32: 56 of queries, 72 of the latent, 16 of the key
//   q_norm      [56] f32
//   kv_norm     [72] f32
//   rope_table  [tokens, 16] f32: cosines, then sines
//   rows        [blocks, 2, 4, 1, 88] f32
//   out         [tokens, 56] f32
static void latent_write_101a83e9(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *q_norm, const float *kv_norm, const float *rope_table, int layer, float *out) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const float *own = x + (size_t)t * 144;
        mlxr_norm_columns(own, mlxr_moments_of(own, 56, 0, 9.99999975e-06f), q_norm, NULL, NULL, 0.0f, 0, 56, out + (size_t)t * 56);
        own += 56;
        float row[112];
        mlxr_norm_columns(own, mlxr_moments_of(own, 72, 0, 9.99999975e-06f), kv_norm, NULL, NULL, 0.0f, 0, 72, row);
        rope_head(row + 72, own + 72, rope_table + (size_t)t * 16, 16, 16, 0, 1.0f);
        cache_store(w->model->stores[0] + (size_t)layer * 1408u + (size_t)(b->groups[0].slots[t] / 4) * 2816u + (size_t)(b->groups[0].slots[t] % 4) * 352u, row, MLXR_CACHE_F32, 88);
    }
}
