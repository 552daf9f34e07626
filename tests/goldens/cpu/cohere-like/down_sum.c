// o, and to its result that of down: out = second_x @ second_w0.T + x @ w0.T + residual
//   x, second_x    [tokens, 256], [tokens, 88] f32
//   w0, second_w0  [48, 256] f32, [48, 88] f32
//   bias, second_bias  [48] f32, those that there are
//   residual, out  [tokens, 48] f32
static void down_sum_a1807db7(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *residual, const float *second_x, const uint8_t *second_w0, float *out) {
    o_15304f4b(w, b, x, w0, residual, out);
    // Both matrices have the same rows, so a thread has the same columns of both results; threads share what they make of
    // several rows of inputs.
    if (b->tokens > 1) mlxr_barrier(w);
    down_4a487f66(w, b, second_x, second_w0, out, out);
}
