// q_b: out = x @ W.T
//   x        [tokens, 56] f32
//   w0       [240, 56] f32
//   out      [tokens, 240] f32
static void q_b_bb1e900a(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = NULL,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 56,
        .eps = 0.0f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f32_56_f32,
            .w = w0,
            .rows = 240,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 240,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
