// gate_up: out = silu(rms_norm(x) @ w0.T) * (rms_norm(x) @ w1.T)
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [88, 48] f32
//   w1       [88, 48] f32
//   out      [tokens, 88] f32
static void gate_up_0d8adb5b(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, float *out) {
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
            .up_matrix = &f32_48_f32,
            .up = w1,
            .rows = 88,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 88,
        .finish = finish_silu,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
