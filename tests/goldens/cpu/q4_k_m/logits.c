// logits: out = rms_norm(x[logit_rows]) @ W.T
//   x        [tokens, 256] f32
//   norm     [256] f32
//   w0       [61, 256] q6_k
//   out      [rows, 61] f32
static void logits_775474d2(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = b->logit_rows,
        .rows = b->rows,
        .columns = 256,
        .eps = 9.99999975e-06f,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &q6_k_256_exact,
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
    mlxr_project(w, &in, segments, 1, INT32_MAX, MLXR_ROWS_F32, &output);
}
