// Cosines and sines of the step's positions, for all layers. The angle is an f32 product, as the reference rounds it;
// its cosine and sine are those of double precision, times 1.3465735902799727, rounded once. Threads split the (token, pair)s.
//   out  [tokens, 40] f32: 20 cosines, then 20 sines
static void rope_table_12b1bc72(mlxr_worker *w, const mlxr_batch *b, float *out) {
    static const float frequencies[20] = {
        1.0f, 0.210712388f, 0.00948944688f, 0.00522921281f, 0.00288158725f, 0.00158791489f,
        0.000875029422f, 0.000482189876f, 0.000265713432f, 0.000146422884f, 8.0687154e-05f, 4.44631078e-05f,
        2.45016472e-05f, 1.35017699e-05f, 7.440226e-06f, 4.09997847e-06f, 2.25931626e-06f, 1.24500889e-06f,
        6.86069143e-07f, 3.78062254e-07f,
    };
    int first, last;
    mlxr_share(w, b->tokens * 20, &first, &last);
    for (int i = first; i < last; i++) {
        const int token = i / 20, pair = i % 20;
        const float angle = (float)b->positions[token] * frequencies[pair];
        float *row = out + (size_t)token * 40;
        row[pair] = (float)(1.3465735902799727 * cos((double)angle));
        row[pair + 20] = (float)(1.3465735902799727 * sin((double)angle));
    }
}
