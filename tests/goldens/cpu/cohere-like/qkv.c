// qkv: out = layer_norm(x) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [256, 48] f32
//   w1       [256, 48] f32
//   w2       [256, 48] f32
//   out      [tokens, 768] f32
static void qkv_0e58db48(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .layer = 1,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 48,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f32_48_f32,
            .w = w0,
            .rows = 256,
        },
        {
            .matrix = &f32_48_f32,
            .w = w1,
            .rows = 256,
        },
        {
            .matrix = &f32_48_f32,
            .w = w2,
            .rows = 256,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 768,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 3, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
