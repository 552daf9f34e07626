// experts_down_shared: out = sum over a token's experts e of weight * (x @ W[e].T) + sigmoid(shared_gate) * shared_x @ s0.T + residual
//   x        [tokens, 2, 56] f32
//   w0       [5, 48, 56] f32
//   residual [tokens, 48] f32
//   experts  [tokens, 2] i32
//   weights  [tokens, 2] f32
//   s0       [48, 40] f32
//   shared_x [tokens, 40] f32
//   shared_gate [tokens, 1] f32
//   out      [tokens, 48] f32
static void experts_down_shared_dcfeb910(mlxr_worker *w, const mlxr_batch *b, const float *x, const uint8_t *w0, const float *residual, const int32_t *experts, const float *weights, const uint8_t *s0, const float *shared_x, const float *shared_gate, float *out) {
    const mlxr_input in = {
        .x = x,
        .columns = 56,
    };
    const mlxr_choice choice = {
        .experts = experts,
        .weights = weights,
        .tokens = b->tokens,
        .count = 5,
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
        .residual = residual,
        .width = 48,
        .finish = finish_summed_residual,
    };
    const mlxr_input shared_in = {.x = shared_x, .columns = 40};
    const struct mlxr_always products[] = {
        {
            .segment = {
                .matrix = &f32_40_f32,
                .w = s0,
                .rows = 48,
            },
            .output = {
                .out = out,
                .residual = out,
                .gate = shared_gate,
                .width = 48,
                .finish = finish_gate_residual,
            },
            .few = MLXR_FEW_F32,
            .wide = MLXR_ROWS_F32,
        },
    };
    const mlxr_shared always = { &shared_in, products, 1 };
    mlxr_experts(w, &in, &choice, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, &output, &always);
}
