// qk_norm: queries and keys through rms_norm, each head; values as they are
//   qkv      [tokens, 192] f32
//   q_norm   [32] f32
//   k_norm   [32] f32
//   out      [tokens, 192] f32
// Threads share the heads of all tokens.
static void qk_norm_00d24b20(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *q_norm, const float *k_norm, float *out) {
    int first, last;
    mlxr_share(w, b->tokens * 6, &first, &last);
    for (int i = first; i < last; i++) {
        const int head = i % 6;
        const float *from = qkv + (size_t)i * 32;
        float *to = out + (size_t)i * 32;
        if (head >= 5) {
            memcpy(to, from, 128);
            continue;
        }
        const mlxr_moments m = mlxr_moments_of(from, 32, 0, 9.99999997e-07f);
        if (head < 4) mlxr_norm_columns(from, m, q_norm, NULL, NULL, 0.0f, 0, 32, to);
        else mlxr_norm_columns(from, m, k_norm, NULL, NULL, 0.0f, 0, 32, to);
    }
}
