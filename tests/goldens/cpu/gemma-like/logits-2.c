// logits: out = 3.0 * tanh((rms_norm(x[logit_rows]) @ W.T) / 3.0)
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [61, 48] f32
//   out      [rows, 61] f32
static void logits_a1e40b3d(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = b->logit_rows,
        .rows = b->rows,
        .columns = 48,
        .eps = 9.99999997e-07f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f32_48_f32,
            .w = w0,
            .rows = 61,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 61,
        .finish = finish_out_cap_3p0,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
