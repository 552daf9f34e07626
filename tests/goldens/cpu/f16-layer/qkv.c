// qkv: out = rms_norm(x) @ W.T + bias
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [512, 48] f16
//   w1       [64, 48] f16
//   w2       [64, 48] f16
//   bias     [640] f32
//   out      [tokens, 640] f32
static void qkv_15e5ad53(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, const float *bias, float *out) {
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
            .matrix = &f16_48_exact,
            .w = w0,
            .rows = 512,
        },
        {
            .matrix = &f16_48_exact,
            .w = w1,
            .rows = 64,
        },
        {
            .matrix = &f16_48_exact,
            .w = w2,
            .rows = 64,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = bias,
        .residual = NULL,
        .width = 640,
        .finish = finish_bias,
    };
    mlxr_project(w, &in, segments, 3, INT32_MAX, MLXR_ROWS_F32, &output);
}
