// Cosines and sines of the step's positions, for all layers. The angle is an f32 product, as the reference rounds it;
// its cosine and sine are those of double precision, rounded once. Threads split the (token, pair)s.
//   out  [tokens, 32] f32: 16 cosines, then 16 sines
static void rope_table_ba8e7ad2(mlxr_worker *w, const mlxr_batch *b, float *out) {
    static const float frequencies[16] = {
        1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0562341325f,
        0.0316227749f, 0.0177827943f, 0.00999999978f, 0.00562341325f, 0.00316227763f, 0.00177827943f,
        0.00100000005f, 0.000562341302f, 0.000316227757f, 0.00017782794f,
    };
    int first, last;
    mlxr_share(w, b->tokens * 16, &first, &last);
    for (int i = first; i < last; i++) {
        const int token = i / 16, pair = i % 16;
        const float angle = (float)b->positions[token] * frequencies[pair];
        float *row = out + (size_t)token * 32;
        row[pair] = (float)cos((double)angle);
        row[pair + 16] = (float)sin((double)angle);
    }
}
