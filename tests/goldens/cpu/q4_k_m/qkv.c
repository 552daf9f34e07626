// qkv: out = rms_norm(x) @ W.T + bias
//   x        [tokens, 256] f32
//   norm     [256] f32
//   w0       [256, 256] q4_k
//   w1       [64, 256] q4_k
//   w2       [64, 256] q6_k
//   bias     [384] f32
//   out      [tokens, 384] f32
static void qkv_e58b2fe7(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const uint8_t *w2, const float *bias, float *out) {
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
            .rows = 256,
        },
        {
            .matrix = &q4_k_256_exact,
            .w = w1,
            .rows = 64,
        },
        {
            .matrix = &q6_k_256_exact,
            .w = w2,
            .rows = 64,
        },
    };
    const mlxr_output output = {
        .out = out,
        .bias = bias,
        .residual = NULL,
        .width = 384,
        .finish = finish_bias,
    };
    mlxr_project(w, &in, segments, 3, INT32_MAX, MLXR_ROWS_F32, &output);
}
