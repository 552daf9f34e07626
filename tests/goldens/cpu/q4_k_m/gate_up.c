// gate_up: out = silu(rms_norm(x) @ w0.T) * (rms_norm(x) @ w1.T)
//   x        [tokens, 256] f32
//   norm     [256] f32
//   w0       [512, 256] q4_k
//   w1       [512, 256] q4_k
//   out      [tokens, 512] f32
static void gate_up_d914ed9d(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 256,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &q4_k_256_exact,
            .w = w0,
            .up_matrix = &q4_k_256_exact,
            .up = w1,
            .rows = 512,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 512,
        .finish = finish_silu,
    };
    mlxr_project(w, &in, segments, 1, INT32_MAX, MLXR_ROWS_F32, &output);
}
