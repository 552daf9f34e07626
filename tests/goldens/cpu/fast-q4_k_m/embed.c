// out = table[token_ids]
//   table [61, 256] q4_k, packed
//   out   [tokens, 256] f32
static void embed_ff3e49c4(mlxr_worker *w, const mlxr_batch *b, const uint8_t *table, float *out) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++) {
        const int row = b->token_ids[t];
        float *to = out + (size_t)t * 256;
        const uint8_t *panel = table + (size_t)(row / 16) * 2304;
        for (int c = 0; c < 256; c += 32) {
            float columns[32][16];
            q4_k_panel_f32(panel, 256, c, c + 32, columns[0]);
            for (int i = 0; i < 32; i++) to[c + i] = columns[i][row % 16];
        }
    }
}
