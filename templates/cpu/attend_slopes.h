// Attention with biases of scores by distance (ALiBi): a score is less by its head's slope times the tokens between key
// and query. Distances here are those from the query to the key, so 0 or less.

// Scores [count][columns], rows of `stride`, of keys from position `first` on.
MLXR_INLINE void attend_slope_columns(float *scores, int stride, int count, int columns, const float *slopes,
                                      const int32_t *positions, int first) {
    for (int j = 0; j < count; j++)
        for (int v = 0; v < columns; v += MLXR_LANES) {
            float *at = scores + (size_t)j * stride + v;
            const f32v distance = f32_of_i32(first + j - i32_load(positions + v));
            f32_store(at, f32_fma(distance, f32_load(slopes + v), f32_load(at)));
        }
}

// Scores of one query, of `count` keys rounded up to vectors; `distance` is that of the first.
MLXR_INLINE void attend_slope_row(float *scores, int count, float slope, int distance) {
    i32v of_key;
    MLXR_UNROLL
    for (int i = 0; i < MLXR_LANES; i++) of_key[i] = distance + i;
    for (int j = 0; j < count; j += MLXR_LANES, of_key += MLXR_LANES)
        f32_store(scores + j, f32_fma(f32_of_i32(of_key), f32_set1(slope), f32_load(scores + j)));
}

// Scores of attend_scores; `distance` is that of the first key.
MLXR_INLINE void attend_slope_blocks(float *scores, int heads, int count, const float *slopes, int distance) {
    const int block = attend_block(heads), keys = MLXR_LANES / block;
    float lanes[MLXR_LANES];
    i32v of_key;
    MLXR_UNROLL
    for (int i = 0; i < MLXR_LANES; i++) {
        lanes[i] = i % block < heads ? slopes[i % block] : 0.0f;
        of_key[i] = distance + i / block;
    }
    const f32v slope = f32_load(lanes);
    for (int j = 0; j < count; j += keys, of_key += keys)
        f32_store(scores + j * block, f32_fma(f32_of_i32(of_key), slope, f32_load(scores + j * block)));
}

// attend_decode_heads with slopes[heads] in place of a cap.
MLXR_INLINE void attend_decode_slopes_heads(float *values, float *maxima, float *sums, float *scores, const float *q,
                                            int heads, const uint8_t *k_rows, const uint8_t *v_rows,
                                            const size_t *offsets, const size_t *v_offsets, cache_ahead *ahead,
                                            cache_ahead *v_ahead, int lines, int v_lines, int count,
                                            const float *slopes, int distance, int type, int head_dim, int v_dim,
                                            int dim) {
    const int block = attend_block(heads), keys = MLXR_LANES / block;
    float keep[MLXR_LANES];
    attend_scores(scores, q, heads, k_rows, offsets, ahead, lines, count, cache_key_type(type), head_dim, dim);
    attend_scale(scores, block, k_rows, offsets, count, cache_key_type(type), head_dim);
    attend_slope_blocks(scores, heads, count, slopes, distance);
    attend_softmax(scores, block, count, (count + keys - 1) / keys * keys, maxima, sums, keep, ahead, 0);
    attend_scale(scores, block, v_rows, v_offsets, count, type, v_dim);
    attend_values(values, keep, scores, heads, v_rows, v_offsets, v_ahead, v_lines, count, type, v_dim, dim);
}

// attend_decode_rows with slopes[heads] in place of a cap.
MLXR_INLINE void attend_decode_slopes(float *values, float *maxima, float *sums, float *scores, const float *q, int heads,
                                      const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                      const size_t *v_offsets, cache_ahead *ahead, cache_ahead *v_ahead, int count,
                                      const float *slopes, int distance, int type, int head_dim, int v_dim, int dim) {
    const int whole = heads / MLXR_LANES * MLXR_LANES, apart = ahead != v_ahead;
    const int lines = (head_dim * cache_element_bytes(type) + 127) / (apart ? 64 : 128);
    const int v_lines = apart ? (v_dim * cache_element_bytes(type) + 127) / 64 : lines;
    for (int h = 0; h < whole; h += MLXR_LANES)
        attend_decode_slopes_heads(values + h * dim, maxima + h, sums + h, scores, q + h * dim, MLXR_LANES, k_rows, v_rows,
                                   offsets, v_offsets, ahead, v_ahead, h ? 0 : lines, h ? 0 : v_lines, count, slopes + h,
                                   distance, type, head_dim, v_dim, dim);
    if (whole < heads)
        attend_decode_slopes_heads(values + whole * dim, maxima + whole, sums + whole, scores, q + whole * dim,
                                   heads - whole, k_rows, v_rows, offsets, v_offsets, ahead, v_ahead, whole ? 0 : lines,
                                   whole ? 0 : v_lines, count, slopes + whole, distance, type, head_dim, v_dim, dim);
}
