// qk_norm: queries and keys through layer_norm, each head, with weights of its own; values as they are
//   qkv      [tokens, 768] f32
//   q_norm   [256] f32
//   k_norm   [256] f32
//   out      [tokens, 768] f32
// Threads share the heads of all tokens.
static void qk_norm_dc0080ba(mlxr_worker *w, const mlxr_batch *b, const float *qkv, const float *q_norm, const float *k_norm, float *out) {
    int first, last;
    mlxr_share(w, b->tokens * 24, &first, &last);
    for (int i = first; i < last; i++) {
        const int head = i % 24;
        const float *from = qkv + (size_t)i * 32;
        float *to = out + (size_t)i * 32;
        if (head >= 16) {
            memcpy(to, from, 128);
            continue;
        }
        const mlxr_moments m = mlxr_moments_of(from, 32, 1, 9.99999975e-06f);
        if (head < 8) mlxr_norm_columns(from, m, q_norm + head * 32, NULL, NULL, 0.0f, 0, 32, to);
        else mlxr_norm_columns(from, m, k_norm + (head - 8) * 32, NULL, NULL, 0.0f, 0, 32, to);
    }
}
