// logits: out = rms_norm(x[logit_rows]) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [61, 48] f32
//   out      [rows, 61] f32
static void logits_9df983b8(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = b->logit_rows,
        .rows = b->rows,
        .columns = 48,
        .eps = 9.99999975e-06f,
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
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 1, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
