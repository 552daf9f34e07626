// Products of heads: `count` matrices, one after the other in memory, head h's inputs by matrix h. A head is one product of
// its rows, by the same ways as any projection. Threads share the units of all heads.

// `in` has the rows of all heads, head after head; heads' outputs begin `of_head` columns apart. `few` and `wide` as for
// mlxr_project.
MLXR_OUTLINE void mlxr_heads(mlxr_worker *w, const mlxr_input *in, const mlxr_segment *all, int few, int wide, int of_head,
                             const mlxr_output *output) {
    const int K = in->columns, m = in->rows / in->heads, units = mlxr_units(all);
    const int form = m > few ? wide : mlxr_form(all->matrix, m);
    const size_t bytes = mlxr_row_bytes(form, K);
    float *row = (float *)w->scratch;
    uint8_t *own = (uint8_t *)row + mlxr_row_floats(K) * 4;
    mlxr_split split = mlxr_split_start(w, (int64_t)units * in->heads);
    // A single token's heads: a thread prepares those that it multiplies.
    mlxr_input mine = *in;
    int begin = 0;
    if (m == 1) {
        begin = (int)(split.begin / units);
        mine.heads = mine.rows = (int)((split.end + units - 1) / units) - begin;
        mine.x += (size_t)begin * (size_t)in->of_head;
    }
    const uint8_t *x = mlxr_inputs(w, &mine, form, m == 1, 1, row, own, w->shared);
    if (m == 1) own += bytes * (size_t)(mine.rows + MLXR_MOST_TILE_ROWS);
    else mlxr_barrier(w);
    for (int h = 0; h < in->heads; h++) {
        int first, last;
        mlxr_split_next(&split, 1, units, &first, &last);
        if (first >= last) continue;
        mlxr_segment s = *all;
        s.w += (size_t)h * (size_t)s.rows * (s.matrix->panel_bytes / 16);
        mlxr_output out = *output;
        out.out += (size_t)h * (size_t)of_head;
        const uint8_t *at[MLXR_FORMS] = {NULL};
        size_t x_bytes[MLXR_FORMS] = {0};
        at[form] = x + (size_t)(h - begin) * (size_t)m * bytes;
        x_bytes[form] = bytes;
        mlxr_expert(m, K, few, wide, &s, first, last, at, x_bytes, own, &out);
    }
}
