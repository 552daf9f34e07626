// norm: out = residual + rms_norm(x)
//   x        [tokens, 48] f32
//   weight   [48] f32
//   residual [tokens, 48] f32
//   out      [tokens, 48] f32
// Threads share the rows, and their columns too where there are fewer of them than threads.
static void norm_798e3799(mlxr_worker *w, const mlxr_batch *b, const float *x, const float *weight, const float *residual, float *out) {
    const int pieces = b->tokens, parts = pieces < w->threads ? w->threads : 1;
    int first, last;
    mlxr_share(w, pieces * parts, &first, &last);
    for (int i = first; i < last; i++) {
        const int piece = i / parts;
        const size_t at = (size_t)piece * 48;
        const mlxr_moments m = mlxr_moments_of(x + at, 48, 0, 9.99999997e-07f);
        int from, to;
        mlxr_part(48, i % parts, parts, &from, &to);
        mlxr_norm_columns(x + at, m, weight, NULL, residual + at, 0.0f, from, to, out + at);
    }
}
