// router: out = rms_norm(x) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [1, 48] f32
//   out      [tokens, 1] f32
static void router_47f3c2ee(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, float *out) {
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
            .rows = 1,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 1,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
