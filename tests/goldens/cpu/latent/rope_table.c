// Cosines and sines of the step's positions, for all layers. The angle is an f32 product, as the reference rounds it;
// its cosine and sine are those of double precision, rounded once. Threads split the (token, pair)s.
//   out  [tokens, 16] f32: 8 cosines, then 8 sines
static void rope_table_121186ca(mlxr_worker *w, const mlxr_batch *b, float *out) {
    static const float frequencies[8] = {
        1.0f, 0.316227764f, 0.100000001f, 0.0316227749f, 0.00999999978f, 0.00316227763f,
        0.00100000005f, 0.000316227757f,
    };
    int first, last;
    mlxr_share(w, b->tokens * 8, &first, &last);
    for (int i = first; i < last; i++) {
        const int token = i / 8, pair = i % 8;
        const float angle = (float)b->positions[token] * frequencies[pair];
        float *row = out + (size_t)token * 16;
        row[pair] = (float)cos((double)angle);
        row[pair + 8] = (float)sin((double)angle);
    }
}
