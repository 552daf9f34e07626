// o: out = x @ W.T + residual
//   x        [tokens, 240] f32
//   w0       [48, 240] f32
//   residual [tokens, 48] f32
//   out      [tokens, 48] f32
static void o_5f856a69(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *residual, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = NULL,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 240,
        .eps = 0.0f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f32_240_f32,
            .w = w0,
            .rows = 48,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = residual,
        .width = 48,
        .finish = finish_residual,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
