// route: softmax_topk, the best 2 of 5, normalised, times 1.0
//   x        [tokens, 5] f32: the router's logits
//   experts  [tokens, 2] i32, best first
//   weights  [tokens, 2] f32
static void route_c57caa6e(mlxr_worker *w, const mlxr_batch *b, const float *x, int32_t *experts, float *weights) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++)
        mlxr_route(x + (size_t)t * 5, NULL, 5, 2, MLXR_SOFTMAX_TOPK, 1, 1.0f, 1, 1, 1, experts + (size_t)t * 2, weights + (size_t)t * 2);
}
