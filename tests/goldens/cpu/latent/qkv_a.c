// qkv_a: out = rms_norm(x) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [56, 48] f32
//   w1       [88, 48] f32
//   out      [tokens, 144] f32
static void qkv_a_5567e1cb(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, float *out) {
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
            .matrix = &f32_48_f32,
            .w = w0,
            .rows = 56,
        },
        {
            .matrix = &f32_48_f32,
            .w = w1,
            .rows = 88,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 144,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 2, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
