// routed_experts_gate_up: out = swiglu_oai(rms_norm(x) @ w0[e].T + bias, rms_norm(x) @ w1[e].T + bias) for each of a token's experts e, chosen by route: topk_softmax, the best 2 of 6, times 1.0
//   x        [tokens, 48] f32
//   norm     [48] f32
//   w0       [6, 56, 48] f32
//   w1       [6, 56, 48] f32
//   bias     [2, 6, 56] f32
//   logits   [tokens, 6] f32
//   experts  [tokens, 2] i32
//   weights  [tokens, 2] f32
//   later    [6, 48, 56] f32
//   out      [tokens, 2, 56] f32
static void routed_experts_gate_up_b683504d(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *norm, const uint8_t *w0, const uint8_t *w1, const float *bias, const float *logits, const uint8_t *later, float *out, int32_t *experts, float *weights) {
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
        mlxr_route(logits + (size_t)t * 6, NULL, 6, 2, MLXR_TOPK_SOFTMAX, 0, 1.0f, 1, 1, 1, of_token, by);
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
        .count = 6,
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
        .bias = bias,
        .up_bias = bias + 336,
        .width = 56,
        .finish = finish_bias_swiglu_oai_apart_limit_7p0,
    };
    const mlxr_shared always = {NULL, NULL, 0};
    mlxr_experts(w, &in, &choice, &segment, MLXR_FEW_F32, MLXR_ROWS_F32, &output, &always);
}
