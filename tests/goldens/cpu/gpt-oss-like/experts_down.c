// experts_down: out = sum over a token's experts e of weight * (x @ W[e].T + bias) + residual
//   x        [tokens, 2, 56] f32
//   w0       [6, 48, 56] f32
//   bias     [1, 6, 48] f32
//   residual [tokens, 48] f32
//   experts  [tokens, 2] i32
//   weights  [tokens, 2] f32
//   out      [tokens, 48] f32
static void experts_down_3d835fde(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *bias, const float *residual, const int32_t *experts, const float *weights, float *out) {
    const mlxr_input in = {
        .x = x,
        .columns = 56,
    };
    const mlxr_choice choice = {
        .experts = experts,
        .weights = weights,
        .tokens = b->tokens,
        .count = 6,
        .top_k = 2,
        .inputs_of_pairs = 1,
        .summed = 1,
        .stride = 10752,
    };
    const mlxr_segment segment = {
        .matrix = &f32_56_f32,
        .w = w0,
        .rows = 48,
    };
    const mlxr_output output = {
        .out = out,
        .bias = bias,
        .residual = residual,
        .width = 48,
        .finish = finish_bias_summed_residual,
    };
    const mlxr_shared always = {NULL, NULL, 0};
    mlxr_experts(w, &in, &choice, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, &output, &always);
}
