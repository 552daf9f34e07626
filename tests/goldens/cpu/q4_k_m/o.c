// o: out = x @ W.T + residual
//   x        [tokens, 256] f32
//   w0       [256, 256] q4_k
//   residual [tokens, 256] f32
//   out      [tokens, 256] f32
static void o_c93e687f(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *residual, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = NULL,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 256,
        .eps = 0.0f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &q4_k_256_exact,
            .w = w0,
            .rows = 256,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = residual,
        .width = 256,
        .finish = finish_residual,
    };
    mlxr_project(w, &in, segments, 1, INT32_MAX, MLXR_ROWS_F32, &output);
}
