// experts_gate_up: out = silu(rms_norm(x) @ w0[e].T) * (rms_norm(x) @ w1[e].T) for each of a token's experts e
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [5, 56, 48] f32
//   w1       [5, 56, 48] f32
//   experts  [tokens, 2] i32
//   later    [5, 48, 56] f32
//   out      [tokens, 2, 56] f32
static void experts_gate_up_37339a35(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const int32_t *experts, const uint8_t *later, float *out) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .eps = 9.99999975e-06f,
        .columns = 48,
    };
    const mlxr_choice choice = {
        .experts = experts,
        .weights = NULL,
        .tokens = b->tokens,
        .count = 5,
        .top_k = 2,
        .inputs_of_pairs = 0,
        .summed = 0,
        .stride = 10752,
        .up_stride = 10752,
        .later = later,
        .later_stride = 10752,
    };
    const mlxr_segment segment = {
        .matrix = &f32_48_f32,
        .w = w0,
        .up_matrix = &f32_48_f32,
        .up = w1,
        .rows = 56,
    };
    const mlxr_output output = {
        .out = out,
        .width = 56,
        .finish = finish_silu_apart,
    };
    const mlxr_shared always = {NULL, NULL, 0};
    mlxr_experts(w, &in, &choice, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, &output, &always);
}
