// route: topk_softmax, the best 2 of 6, times 1.0
//   x        [tokens, 6] f32: the router's logits
//   experts  [tokens, 2] i32, best first
//   weights  [tokens, 2] f32
static void route_2b2beca4(mlxr_worker *w, const mlxr_batch *b, const float *x, int32_t *experts, float *weights) {
    int first, last;
    mlxr_share(w, b->tokens, &first, &last);
    for (int t = first; t < last; t++)
        mlxr_route(x + (size_t)t * 6, NULL, 6, 2, MLXR_TOPK_SOFTMAX, 0, 1.0f, 1, 1, 1, experts + (size_t)t * 2, weights + (size_t)t * 2);
}
