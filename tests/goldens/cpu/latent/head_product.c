// head_product: out[h] = x[h] @ w0[h].T
//   x        [tokens, 432] f32: 6 heads of 72
//   w0       [6, 32, 72] f32
//   out      [tokens, 6, 32] f32
static void head_product_4075277d(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, float *out) {
    const mlxr_input in = {
        .x = x,
        .rows = 6 * b->tokens,
        .columns = 72,
        .heads = 6,
        .of_head = 72,
        .of_token = 432,
    };
    const mlxr_segment segment = {
        .matrix = &f32_72_f32,
        .w = w0,
        .rows = 32,
    };
    const mlxr_output output = {
        .out = out,
        .width = 192,
        .finish = finish,
    };
    mlxr_heads(w, &in, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, 32, &output);
}
