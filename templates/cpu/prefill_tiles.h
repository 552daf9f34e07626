// Attention of a tile of queries with matrix tiles; it builds on attend_tiles.h. Columns are queries, rows are keys or
// elements: scores = K queries, values^T = V^T weights. A block is 32 columns, whose scores stay in the first-level
// cache.
#if defined(MLXR_ATTEND_TILES)
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

// scores [32 * pairs][32] of groups of 16 keys, two at a time, and a block of columns; q: its two columns of tiles.
MLXR_INLINE void tiles_block_scores(float *scores, const uint8_t *const *group, const size_t *stride, const uint8_t *q,
                                    int pairs, int steps) {
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
            _tile_loadd(7, q + 1024 * (steps + s), 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, group[g + 1] + 64 * s, stride[g + 1]);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, scores + 512 * g, 128);
        _tile_stored(1, scores + 512 * g + 16, 128);
        _tile_stored(2, scores + 512 * g + 512, 128);
        _tile_stored(3, scores + 512 * g + 528, 128);
    }
    MLXR_FENCE();
}

// Scores of keys [0, count) of a block become weights: right tiles [halves of 32 keys][2], zero past count. k_scales
// and v_scales, in q8: of the keys' rows. Returns whether the block's values so far are to be multiplied by keep [32].
MLXR_INLINE int tiles_block_softmax(uint8_t *weights, float *scores, int count, const float *k_scales,
                                    const float *v_scales, float *maxima, float *sums, float *keep) {
    if (k_scales)
        for (int j = 0; j < count; j++) {
            f32_store(scores + 32 * j, f32_load(scores + 32 * j) * k_scales[j]);
            f32_store(scores + 32 * j + 16, f32_load(scores + 32 * j + 16) * k_scales[j]);
        }
    for (int j = count; j % 32; j++) {
        f32_store(scores + 32 * j, f32_set1(-__builtin_inff()));
        f32_store(scores + 32 * j + 16, f32_set1(-__builtin_inff()));
    }
    const int end = (count + 31) / 32 * 32;
    f32v largest[8], now[2], total[2], kept[2];
    MLXR_UNROLL
    for (int i = 0; i < 8; i++) largest[i] = f32_load(maxima + i % 2 * 16);
    for (int j = 0; j < end; j += 4)
        MLXR_UNROLL
        for (int i = 0; i < 8; i++) largest[i] = f32_max(largest[i], f32_load(scores + 32 * j + 16 * i));
    int changed = 0;
    MLXR_UNROLL
    for (int v = 0; v < 2; v++) {
        const f32v before = f32_load(maxima + 16 * v);
        now[v] = f32_max(f32_max(largest[v], largest[v + 2]), f32_max(largest[v + 4], largest[v + 6]));
        kept[v] = f32_exp2_negative(before - now[v]);
        total[v] = f32_load(sums + 16 * v) * kept[v];
        changed |= _mm512_cmp_ps_mask((__m512)before, (__m512)now[v], _CMP_NEQ_UQ);
        f32_store(maxima + 16 * v, now[v]);
        f32_store(keep + 16 * v, kept[v]);
    }
    for (int j = 0; j < end; j += 2)
        MLXR_UNROLL
        for (int v = 0; v < 2; v++) {
            f32v p = f32_exp2_negative(f32_load(scores + 32 * j + 16 * v) - now[v]);
            f32v q = f32_exp2_negative(f32_load(scores + 32 * j + 32 + 16 * v) - now[v]);
            total[v] += p + q;
            if (v_scales) p *= v_scales[j], q *= v_scales[j + 1];
            i32_store(weights + (j / 32 * 2 + v) * 1024 + j % 32 * 32, bf16_pairs(p, q));
        }
    f32_store(sums, total[0]);
    f32_store(sums + 16, total[1]);
    return changed;
}

// values[d][column] += sum over keys of V[key][d] * weight[key][column], over keys [32 * from, 32 * to) of the tile and
// a block of columns. values: rows of `width` floats, head_dim rounded up to 32 of them.
MLXR_INLINE void tiles_block_values(float *values, int width, const uint8_t *v_tiles, int v_stride,
                                    const uint8_t *weights, int halves, int head_dim) {
    MLXR_FENCE();
    for (int t = 0; t < (head_dim + 15) / 16; t += 2) {
        float *upper = values + 16 * t * width, *lower = upper + 16 * width;
        const uint8_t *v = v_tiles + t * v_stride * 1024;
        _tile_loadd(0, upper, width * 4);
        _tile_loadd(1, upper + 16, width * 4);
        _tile_loadd(2, lower, width * 4);
        _tile_loadd(3, lower + 16, width * 4);
        for (int half = 0; half < halves; half++) {
            _tile_loadd(4, v + half * 1024, 64);
            _tile_loadd(6, weights + half * 2048, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, weights + half * 2048 + 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, v + (v_stride + half) * 1024, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, upper, width * 4);
        _tile_stored(1, upper + 16, width * 4);
        _tile_stored(2, lower, width * 4);
        _tile_stored(3, lower + 16, width * 4);
    }
    MLXR_FENCE();
}
#endif
