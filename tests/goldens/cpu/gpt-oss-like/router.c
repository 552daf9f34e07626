// router: out = rms_norm(x) @ W.T + bias
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [6, 48] f32
//   bias     [6] f32
//   out      [tokens, 6] f32
static void router_be7ef8db(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const float *bias, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 48,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f32_48_exact,
            .w = w0,
            .rows = 6,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = bias,
        .residual = NULL,
        .width = 6,
        .finish = finish_bias,
    };
    mlxr_project(w, &in, segments, 1, INT32_MAX, MLXR_ROWS_F32, &output);
}
