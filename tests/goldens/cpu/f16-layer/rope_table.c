// Cosines and sines of the step's positions, for all layers. The angle is an f32 product, as the reference rounds it;
// its cosine and sine are those of double precision, rounded once. Threads split the (token, pair)s.
//   out  [tokens, 64] f32: 32 cosines, then 32 sines
static void rope_table_5a8f83dd(mlxr_worker *w, const mlxr_batch *b, float *out) {
    static const float frequencies[32] = {
        1.0f, 0.749894202f, 0.562341332f, 0.421696514f, 0.316227764f, 0.237137377f,
        0.177827939f, 0.133352146f, 0.100000001f, 0.0749894232f, 0.0562341325f, 0.0421696492f,
        0.0316227749f, 0.0237137377f, 0.0177827943f, 0.013335214f, 0.00999999978f, 0.00749894232f,
        0.00562341325f, 0.00421696482f, 0.00316227763f, 0.00237137382f, 0.00177827943f, 0.00133352145f,
        0.00100000005f, 0.000749894185f, 0.000562341302f, 0.000421696517f, 0.000316227757f, 0.00023713737f,
        0.00017782794f, 0.00013335215f,
    };
    int first, last;
    mlxr_share(w, b->tokens * 32, &first, &last);
    for (int i = first; i < last; i++) {
        const int token = i / 32, pair = i % 32;
        const float angle = (float)b->positions[token] * frequencies[pair];
        float *row = out + (size_t)token * 64;
        row[pair] = (float)cos((double)angle);
        row[pair + 32] = (float)sin((double)angle);
    }
}
