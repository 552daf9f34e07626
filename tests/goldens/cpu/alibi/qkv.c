// qkv: out = rms_norm(x) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [240, 48] f32
//   w1       [80, 48] f32
//   w2       [80, 48] f32
//   out      [tokens, 400] f32
static void qkv_507e562b(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, float *out) {
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
            .rows = 240,
        },
        {
            .matrix = &f32_48_f32,
            .w = w1,
            .rows = 80,
        },
        {
            .matrix = &f32_48_f32,
            .w = w2,
            .rows = 80,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 400,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 3, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
