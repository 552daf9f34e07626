// routed_experts_gate_up: out = silu(rms_norm(x) @ w0[e].T) * (rms_norm(x) @ w1[e].T) for each of a token's experts e, chosen by route: softmax_topk, the best 2 of 5, normalised, times 1.0
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [5, 56, 48] f32
//   w1       [5, 56, 48] f32
//   logits   [tokens, 5] f32
//   experts  [tokens, 2] i32
//   weights  [tokens, 2] f32
//   s0       [40, 48] f32
//   s1       [40, 48] f32
//   g0       [1, 48] f32
//   shared_out [tokens, 40] f32
//   shared_gate [tokens, 1] f32
//   later    [5, 48, 56] f32
//   out      [tokens, 2, 56] f32
static void routed_experts_gate_up_14c548fa(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const float *logits, const uint8_t *s0, const uint8_t *s1, const uint8_t *g0, const uint8_t *later, float *out, int32_t *experts, float *weights, float *shared_out, float *shared_gate) {
    const mlxr_input in = {
        .x = x,
        .norm = norm,
        .eps = 9.99999975e-06f,
        .columns = 48,
    };
    // Of one token every thread makes the choice for itself, so that none waits; the first one stores it for later calls.
    int32_t own[2];
    float own_weights[2];
    const int alone = b->tokens == 1;
    int from = 0, to = 1;
    if (!alone) mlxr_share(w, b->tokens, &from, &to);
    const int32_t *chosen = alone ? own : experts;
    for (int t = from; t < to; t++) {
        int32_t *of_token = (alone ? own : experts) + (size_t)t * 2;
        float *by = (alone ? own_weights : weights) + (size_t)t * 2;
        mlxr_route(logits + (size_t)t * 5, NULL, 5, 2, MLXR_SOFTMAX_TOPK, 1, 1.0f, 1, 1, 1, of_token, by);
    }
    if (!alone) mlxr_barrier(w);
    if (alone && w->tid == 0) {
        memcpy(experts, own, sizeof own);
        memcpy(weights, own_weights, sizeof own_weights);
    }
    const mlxr_choice choice = {
        .experts = chosen,
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
    const struct mlxr_always products[] = {
        {
            .segment = {
                .matrix = &f32_48_f32,
                .w = s0,
                .up_matrix = &f32_48_f32,
                .up = s1,
                .rows = 40,
            },
            .output = {
                .out = shared_out,
                .width = 40,
                .finish = finish_silu,
            },
            .few = MLXR_FEW_F32,
            .wide = MLXR_ROWS_F32,
        },
        {
            .segment = {
                .matrix = &f32_48_f32,
                .w = g0,
                .rows = 1,
            },
            .output = {
                .out = shared_gate,
                .width = 1,
                .finish = finish,
            },
            .few = MLXR_FEW_F32,
            .wide = MLXR_ROWS_F32,
        },
    };
    const mlxr_shared always = { NULL, products, 2 };
    mlxr_experts(w, &in, &choice, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, &output, &always);
}
