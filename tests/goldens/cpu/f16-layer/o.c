// o: out = x @ W.T + bias + residual
//   x        [tokens, 512] f32
//   w0       [48, 512] f16
//   bias     [48] f32
//   residual [tokens, 48] f32
//   out      [tokens, 48] f32
static void o_294eb26f(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *bias, const float *residual, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = NULL,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 512,
        .eps = 0.0f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f16_512_exact,
            .w = w0,
            .rows = 48,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = bias,
        .residual = residual,
        .width = 48,
        .finish = finish_bias_residual,
    };
    mlxr_project(w, &in, segments, 1, INT32_MAX, MLXR_ROWS_F32, &output);
}
