// stream = x + rms_norm(added); qkv: out = rms_norm(stream) @ W.T
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [128, 48] f32
//   w1       [32, 48] f32
//   w2       [32, 48] f32
//   added    [tokens, 48] f32
//   added_norm [48] f32
//   out      [tokens, 192] f32
//   stream   [tokens, 48] f32
static void qkv_f3f47b7a(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, const float *added, const float *added_norm, float *out, float *stream) {
    const mlxr_added block = {
        .added = added,
        .norm = added_norm,
        .stream = stream,
        .eps = 9.99999997e-07f,
        .factor = 1.0f,
    };
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .gather = NULL,
        .rows = b->tokens,
        .columns = 48,
        .eps = 9.99999997e-07f,
        .added = &block,
    };
    const mlxr_segment segments[] = {
        {
            .matrix = &f32_48_f32,
            .w = w0,
            .rows = 128,
        },
        {
            .matrix = &f32_48_f32,
            .w = w1,
            .rows = 32,
        },
        {
            .matrix = &f32_48_f32,
            .w = w2,
            .rows = 32,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = NULL,
        .residual = NULL,
        .width = 192,
        .finish = finish,
    };
    mlxr_project(w, &in, segments, 3, MLXR_FEW_F32, MLXR_ROWS_F32, &output);
}
