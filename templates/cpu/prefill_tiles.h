// Attention of a tile of queries with matrix tiles; it builds on attend_tiles.h. Columns are queries, rows are keys or
// elements: scores = K queries, values^T = V^T weights. A block is 32 columns, whose scores stay in the first-level
// cache; with `parts` 1 it is only the first 16 of them, in the same places.
//
// Of few columns ("turned") values = weights^T V: turning the weights costs less than transposing V. The bits are equal:
// a matrix tile adds the same products in the same order.
#if defined(MLXR_PREFILL_TILES)
#define MLXR_TILE_BLOCK 32

// 16 columns of right tiles from rows of f32, [16][dim]: the tiles of 32 elements follow each other.
MLXR_INLINE void tiles_columns(uint8_t *tiles, const float *rows, int head_dim, int dim) {
    for (int at = 0; at < head_dim; at += 32) {
        __m512i r[16];
        MLXR_UNROLL
        for (int i = 0; i < 16; i++) {
            f32v x = f32_load(rows + i * dim + at), y = at + 16 < head_dim ? f32_load(rows + i * dim + at + 16) : f32_zero();
            r[i] = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
        }
        i32_transpose(r);
        MLXR_UNROLL
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(tiles + at * 32 + 64 * i, r[i]);
    }
}

// V of `halves` times 32 rows as left tiles [tiles of 16 elements][halves].
MLXR_INLINE void tiles_transposed(uint8_t *v_tiles, const uint8_t *rows, const size_t *offsets, int halves, int stride,
                                  int type, int head_dim) {
    for (int half = 0; half < halves; half++)
        for (int at = 0; at < head_dim; at += 16) {
            __m512i r[16];
            MLXR_UNROLL
            for (int i = 0; i < 16; i++) {
                const size_t *pair = offsets + 32 * half + 2 * i;
                r[i] = (__m512i)bf16_pairs(cache_vector_at(rows + pair[0], at, type, head_dim),
                                           cache_vector_at(rows + pair[1], at, type, head_dim));
            }
            i32_transpose(r);
            MLXR_UNROLL
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(v_tiles + (at / 16 * stride + half) * 1024 + 64 * i, r[i]);
        }
}

// V of `halves` times 32 rows as right tiles [halves][tiles of 16 elements, an even number].
MLXR_INLINE void tiles_paired(uint8_t *v_tiles, const uint8_t *rows, const size_t *offsets, int halves,
                              cache_ahead *ahead, int lines, int type, int head_dim) {
    const int tiles = (head_dim + 31) / 32 * 2;
    for (int j = 0; j < 32 * halves; j += 2) {
        cache_prefetch(ahead, lines);
        MLXR_UNROLL_4
        for (int t = 0; t < tiles; t += 2) {
            __m512i low, high;
            tiles_pairs(&low, &high, rows + offsets[j], rows + offsets[j + 1], 16 * t, type, head_dim);
            uint8_t *to = v_tiles + (j / 32 * tiles + t) * 1024 + j % 32 * 32;
            _mm512_storeu_si512(to, low);
            _mm512_storeu_si512(to + 1024, high);
        }
    }
}

// scores [32 * pairs][32] of groups of 16 keys, two at a time, and a block of columns; q: its columns of tiles.
MLXR_INLINE void tiles_block_scores(float *scores, const uint8_t *const *group, const size_t *stride, const uint8_t *q,
                                    int pairs, int steps, int parts) {
#if defined(MLXR_ATTEND_DOTS)
    for (int g = 0; g < 2 * pairs; g++)
        dots_product(scores + 512 * g, 32, 1, group[g], stride[g], 64, q, 1024, 1024 * (size_t)steps, steps, parts);
#else
    MLXR_FENCE();
    for (int g = 0; g < 2 * pairs; g += 2) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int s = 0; s < steps; s++) {
            _tile_loadd(4, group[g] + 64 * s, stride[g]);
            _tile_loadd(6, q + 1024 * s, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, group[g + 1] + 64 * s, stride[g + 1]);
            _tile_dpbf16ps(2, 5, 6);
            if (parts == 1) continue;
            _tile_loadd(7, q + 1024 * (steps + s), 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, scores + 512 * g, 128);
        _tile_stored(2, scores + 512 * g + 512, 128);
        if (parts == 1) continue;
        _tile_stored(1, scores + 512 * g + 16, 128);
        _tile_stored(3, scores + 512 * g + 528, 128);
    }
    MLXR_FENCE();
#endif
}

// A tile's 4-byte lanes exchanged with its rows.
MLXR_INLINE void tiles_turn(uint8_t *tile) {
    __m512i r[16];
    MLXR_UNROLL
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(tile + 64 * i);
    i32_transpose(r);
    MLXR_UNROLL
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(tile + 64 * i, r[i]);
}

// Scores of keys [0, count) of a block become weights: right tiles [halves of 32 keys][2], zero past count; `turned`:
// left tiles. k_scales and v_scales, in q8: of the keys' rows. Returns whether the block's values so far are to be
// multiplied by keep [32].
MLXR_INLINE int tiles_block_softmax(uint8_t *weights, float *scores, int count, const float *k_scales,
                                    const float *v_scales, float *maxima, float *sums, float *keep, int parts,
                                    int turned) {
    if (k_scales)
        for (int j = 0; j < count; j++)
            MLXR_UNROLL
            for (int v = 0; v < parts; v++)
                f32_store(scores + 32 * j + 16 * v, f32_load(scores + 32 * j + 16 * v) * k_scales[j]);
    for (int j = count; j % 32; j++)
        MLXR_UNROLL
        for (int v = 0; v < parts; v++) f32_store(scores + 32 * j + 16 * v, f32_set1(-__builtin_inff()));
    const int end = (count + 31) / 32 * 32;
    f32v largest[4][2], now[2], total[2];
    MLXR_UNROLL
    for (int i = 0; i < 4; i++)
        MLXR_UNROLL
        for (int v = 0; v < parts; v++) largest[i][v] = f32_load(maxima + 16 * v);
    for (int j = 0; j < end; j += 4)
        MLXR_UNROLL
        for (int i = 0; i < 4; i++)
            MLXR_UNROLL
            for (int v = 0; v < parts; v++)
                largest[i][v] = f32_max(largest[i][v], f32_load(scores + 32 * (j + i) + 16 * v));
    int changed = 0;
    MLXR_UNROLL
    for (int v = 0; v < parts; v++) {
        const f32v before = f32_load(maxima + 16 * v);
        now[v] = f32_max(f32_max(largest[0][v], largest[1][v]), f32_max(largest[2][v], largest[3][v]));
        const f32v kept = f32_exp2_negative(before - now[v]);
        total[v] = f32_load(sums + 16 * v) * kept;
        changed |= _mm512_cmp_ps_mask((__m512)before, (__m512)now[v], _CMP_NEQ_UQ);
        f32_store(maxima + 16 * v, now[v]);
        f32_store(keep + 16 * v, kept);
    }
    for (int j = 0; j < end; j += 2)
        MLXR_UNROLL
        for (int v = 0; v < parts; v++) {
            f32v p = f32_exp2_negative(f32_load(scores + 32 * j + 16 * v) - now[v]);
            f32v q = f32_exp2_negative(f32_load(scores + 32 * j + 32 + 16 * v) - now[v]);
            total[v] += p + q;
            if (v_scales) p *= v_scales[j], q *= v_scales[j + 1];
            i32_store(weights + (j / 32 * 2 + v) * 1024 + j % 32 * 32, bf16_pairs(p, q));
        }
    MLXR_UNROLL
    for (int v = 0; v < parts; v++) f32_store(sums + 16 * v, total[v]);
    if (turned)
        for (int half = 0; half < end / 32; half++)
            MLXR_UNROLL
            for (int v = 0; v < parts; v++) tiles_turn(weights + (half * 2 + v) * 1024);
    return changed;
}

// values[d][column] += sum over keys of V[key][d] * weight[key][column], over keys [32 * from, 32 * to) of the tile and
// a block of columns. values: rows of `width` floats, head_dim rounded up to 32 of them.
MLXR_INLINE void tiles_block_values(float *values, int width, const uint8_t *v_tiles, int v_stride,
                                    const uint8_t *weights, int halves, int head_dim, int parts) {
#if defined(MLXR_ATTEND_DOTS)
    for (int t = 0; t < (head_dim + 15) / 16; t++)
        dots_product(values + 16 * t * width, (size_t)width, 0, v_tiles + t * v_stride * 1024, 64, 1024, weights, 2048,
                     1024, halves, parts);
#else
    MLXR_FENCE();
    for (int t = 0; t < (head_dim + 15) / 16; t += 2) {
        float *upper = values + 16 * t * width, *lower = upper + 16 * width;
        const uint8_t *v = v_tiles + t * v_stride * 1024;
        _tile_loadd(0, upper, width * 4);
        _tile_loadd(2, lower, width * 4);
        if (parts == 2) {
            _tile_loadd(1, upper + 16, width * 4);
            _tile_loadd(3, lower + 16, width * 4);
        }
        for (int half = 0; half < halves; half++) {
            _tile_loadd(4, v + half * 1024, 64);
            _tile_loadd(6, weights + half * 2048, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, v + (v_stride + half) * 1024, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (parts == 1) continue;
            _tile_loadd(7, weights + half * 2048 + 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, upper, width * 4);
        _tile_stored(2, lower, width * 4);
        if (parts == 1) continue;
        _tile_stored(1, upper + 16, width * 4);
        _tile_stored(3, lower + 16, width * 4);
    }
    MLXR_FENCE();
#endif
}

// The same turned: values[column][d], rows of `dim` floats. v_tiles as tiles_paired leaves them, weights as left tiles.
MLXR_INLINE void tiles_turned_values(float *values, int dim, const uint8_t *v_tiles, const uint8_t *weights, int halves,
                                     int parts) {
#if defined(MLXR_ATTEND_DOTS)
    const int tiles = dim / 16;
    for (int v = 0; v < parts; v++)
        for (int t = 0; t < tiles; t += 2)
            dots_product(values + 16 * v * dim + 16 * t, (size_t)dim, 0, weights + 1024 * v, 64, 2048, v_tiles + t * 1024,
                         1024 * (size_t)tiles, 1024, halves, 2);
#else
    const int tiles = dim / 16;
    float *lower = values + 16 * dim;
    MLXR_FENCE();
    for (int t = 0; t < tiles; t += 2) {
        const uint8_t *v = v_tiles + t * 1024;
        _tile_loadd(0, values + 16 * t, dim * 4);
        _tile_loadd(1, values + 16 * t + 16, dim * 4);
        if (parts == 2) {
            _tile_loadd(2, lower + 16 * t, dim * 4);
            _tile_loadd(3, lower + 16 * t + 16, dim * 4);
        }
        for (int half = 0; half < halves; half++) {
            _tile_loadd(4, weights + half * 2048, 64);
            _tile_loadd(6, v + half * tiles * 1024, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, v + (half * tiles + 1) * 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
            if (parts == 1) continue;
            _tile_loadd(5, weights + half * 2048 + 1024, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, values + 16 * t, dim * 4);
        _tile_stored(1, values + 16 * t + 16, dim * 4);
        if (parts == 1) continue;
        _tile_stored(2, lower + 16 * t, dim * 4);
        _tile_stored(3, lower + 16 * t + 16, dim * 4);
    }
    MLXR_FENCE();
#endif
}
#endif
