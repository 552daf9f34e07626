// out = table[token_ids]
//   table [61, 48] f32, rows
//   out   [tokens, 48] f32
static void embed_fd7c82d7(mlxr_worker *w, const mlxr_batch *b, const uint8_t *table, float *out) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const int row = b->token_ids[t];
        float *to = out + (size_t)t * 48;
        float_row(MLXR_F32, table + (size_t)row * 192, 48, to);
    }
}
