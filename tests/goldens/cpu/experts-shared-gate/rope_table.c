// Cosines and sines of the step's positions, for all layers. The angle is an f32 product, as the reference rounds it;
// its cosine and sine are those of double precision, rounded once. Threads split the (token, pair)s.
//   out  [tokens, 40] f32: 20 cosines, then 20 sines
static void rope_table_76cafd88(mlxr_worker *w, const mlxr_batch *b, float *out) {
    static const float frequencies[20] = {
        1.0f, 0.630957365f, 0.398107171f, 0.251188636f, 0.158489317f, 0.100000001f,
        0.0630957335f, 0.0398107171f, 0.0251188651f, 0.0158489328f, 0.00999999978f, 0.00630957354f,
        0.00398107152f, 0.00251188641f, 0.00158489321f, 0.00100000005f, 0.000630957366f, 0.000398107164f,
        0.000251188641f, 0.000158489318f,
    };
    int first, last;
    mlxr_share(w, b->tokens * 20, &first, &last);
    for (int i = first; i < last; i++) {
        const int token = i / 20, pair = i % 20;
        const float angle = (float)b->positions[token] * frequencies[pair];
        float *row = out + (size_t)token * 40;
        row[pair] = (float)cos((double)angle);
        row[pair + 20] = (float)sin((double)angle);
    }
}
