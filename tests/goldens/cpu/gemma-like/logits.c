// stream = x + rms_norm(added); logits: out = 3.0 * tanh((rms_norm(stream[logit_rows]) @ W.T) / 3.0)
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [61, 48] f32
//   added    [tokens, 48] f32
//   added_norm [48] f32
//   out      [rows, 61] f32
static void logits_3081defc(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const float *added, const float *added_norm, float *out) {
    const mlxr_added block = {
        .added = added,
        .norm = added_norm,
        .eps = 9.99999997e-07f,
        .factor = 1.0f,
    };
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = b->logit_rows,
        .rows = b->rows,
        .columns = 48,
        .eps = 9.99999997e-07f,
        .added = &block,
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
