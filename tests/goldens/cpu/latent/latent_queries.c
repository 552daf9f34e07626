// latent_queries: out[h] = [x[h] @ w0[h].T | rope(rest of x[h])]
//   x        [tokens, 240] f32: 6 heads of 40
//   w0       [6, 72, 24] f32
//   rope_table [tokens, 16] f32: cosines, then sines
//   out      [tokens, 6, 88] f32
static void latent_queries_d9e64069(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *rope_table, float *out) {
    const mlxr_input in = {
        .x = x,
        .rows = 6 * b->tokens,
        .columns = 24,
        .heads = 6,
        .of_head = 40,
        .of_token = 240,
    };
    const mlxr_segment segment = {
        .matrix = &f32_24_f32,
        .w = w0,
        .rows = 72,
    };
    const mlxr_output output = {
        .out = out,
        .width = 528,
        .finish = finish,
    };
    mlxr_heads(w, &in, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, 88, &output);
    int first, last;
    mlxr_share(w, in.rows, &first, &last);
    for (int i = first; i < last; i++) {
        const int t = i / 6, h = i % 6;
        float turned[32];
        rope_head(turned, x + (size_t)t * 240 + h * 40 + 24, rope_table + (size_t)t * 16, 16, 16, 0, 1.0f);
        memcpy(out + (size_t)t * 528 + h * 88 + 72, turned, 64);
    }
}
