// gate_up: out = gelu(rms_norm(x) @ w0.T + bias) * (rms_norm(x) @ w1.T + bias)
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [136, 48] f16
//   w1       [136, 48] f16
//   bias     [272] f32
//   out      [tokens, 136] f32
static void gate_up_3148999e(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const float *bias, float *out) {
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
            .up_matrix = &f16_48_exact,
            .up = w1,
            .rows = 136,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = bias,
        .up_bias = bias + 136,
        .residual = NULL,
        .width = 136,
        .finish = finish_bias_gelu,
    };
    mlxr_project(w, &in, segments, 1, INT32_MAX, MLXR_ROWS_F32, &output);
}
