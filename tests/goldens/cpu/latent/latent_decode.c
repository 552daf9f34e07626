// latent_decode: the row of each new token, and its queries in the space of rows, which need not wait for each other; then
// attention to rows; then the products of the heads' results.
//   kv          [tokens, 144] f32: the latent from column 56 on
//   kv_norm     [72] f32
//   q           [tokens, 240] f32
//   k_b         [6, 72, 24] f32
//   v_b         [6, 32, 72] f32
//   rope_table  [tokens, 16] f32: cosines, then sines
//   out         [tokens, 192] f32
static void latent_decode_52be7f51(mlxr_worker *w, const mlxr_batch *b, const float *kv, const float *kv_norm, const float *q, const uint8_t *k_b, const uint8_t *v_b, const float *rope_table, int layer, float *out) {
    float *const rows = (float *)(w->shared + 100352);  // [4, 528]
    float *const attended = (float *)(w->shared + 108800);  // [4, 432]

    latent_write_3bff273c(w, b, kv, kv_norm, rope_table, layer);
    latent_queries_d9e64069(w, b, q, k_b, rope_table, rows);
    mlxr_barrier(w);
    attend_decode_6148303a(w, b, rows, layer, attended);
    mlxr_barrier(w);
    head_product_4075277d(w, b, attended, v_b, out);
}
