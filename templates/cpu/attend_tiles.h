// Attention with matrix tiles (AMX): the same mathematics as attend.h, with K, V, queries and weights as bf16 factors
// of f32 sums. K and V of a bf16 or q8 cache lose nothing by that (q8's scales go to scores and weights), those of an
// f16 or q4 cache are rounded.
//
// A tile has 16 rows of 64 bytes. Left factors are rows of 32 bf16; right factors have row p hold, for each of 16
// columns, elements 2 p and 2 p + 1 of the sum. mlxr_tiles_on comes before, mlxr_tiles_off after.
//
// Prompts' attention to rows of latents has the same without tiles, by dot products of pairs (attend_dots.h).
#if (defined(MLXR_AMX) && defined(__AVX512BF16__)) || defined(MLXR_ATTEND_DOTS)
#define MLXR_PREFILL_TILES 1

// Elements [at, at + 32) of a row as bf16, without its scale; zeros past its end.
MLXR_INLINE __m512i tiles_row(const uint8_t *row, int at, int type, int head_dim) {
    if (type == MLXR_CACHE_BF16) {
        const __mmask32 inside = head_dim - at >= 32 ? 0xffffffffu : (1u << ((head_dim - at) % 32)) - 1u;
        return inside == 0xffffffffu ? _mm512_loadu_si512(row + 2 * at) : _mm512_maskz_loadu_epi16(inside, row + 2 * at);
    }
    f32v low = cache_vector_at(row, at, type, head_dim);
    f32v high = at + 16 < head_dim ? cache_vector_at(row, at + 16, type, head_dim) : f32_zero();
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

// Elements [at, at + 16) of two rows as pairs of bf16, without their scales.
MLXR_INLINE void tiles_pairs(__m512i *low, __m512i *high, const uint8_t *a, const uint8_t *b, int at, int type,
                             int head_dim) {
    const __m512i first = _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a,
                                           0x00290009, 0x00280008, 0x00270007, 0x00260006, 0x00250005, 0x00240004,
                                           0x00230003, 0x00220002, 0x00210001, 0x00200000);
    __m512i x = tiles_row(a, at, type, head_dim), y = tiles_row(b, at, type, head_dim);
    *low = _mm512_permutex2var_epi16(x, first, y);
    *high = _mm512_permutex2var_epi16(x, _mm512_add_epi16(first, _mm512_set1_epi16(16)), y);
}

// A row of f32 [head_dim] as column `column` of right tiles, the tiles of 32 elements `step` bytes apart. With `split`
// what rounding takes off goes to column + 8.
MLXR_INLINE void tiles_column(uint8_t *tiles, int step, const float *row, int column, int head_dim, int split) {
    for (int at = 0; at < head_dim; at += 32) {
        uint32_t pairs[2][16];
        f32v x = f32_load(row + at), y = at + 16 < head_dim ? f32_load(row + at + 16) : f32_zero();
        _mm512_storeu_si512(pairs[0], (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x));
        if (split) {
            x -= bf16_load(pairs[0]);
            y -= bf16_load(pairs[0] + 8);
            _mm512_storeu_si512(pairs[1], (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x));
        }
        uint32_t *tile = (uint32_t *)(tiles + at / 32 * step);
        MLXR_UNROLL
        for (int i = 0; i < 16; i++) {
            tile[16 * i + column] = pairs[0][i];
            if (split) tile[16 * i + column + 8] = pairs[1][i];
        }
    }
}

// Where groups of 16 rows lie as left factors, 32 elements a tile: in place where `direct` says that a group's rows may
// be token_bytes apart and they are, else in copies [groups * 16][steps][64 bytes].
MLXR_INLINE void tiles_groups(const uint8_t **group, size_t *stride, const uint8_t *rows, const size_t *offsets,
                              int groups, size_t token_bytes, int direct, uint8_t *copies, int type, int head_dim) {
    const int steps = (head_dim + 31) / 32;
    for (int g = 0; g < groups; g++) {
        const size_t *at = offsets + 16 * g;
        group[g] = rows + at[0];
        stride[g] = token_bytes;
        if (direct && at[15] - at[0] == 15 * token_bytes) continue;
        uint8_t *copy = copies + g * 16 * 64 * steps;
        for (int j = 0; j < 16; j++)
            MLXR_UNROLL
            for (int s = 0; s < steps; s++)
                _mm512_storeu_si512(copy + (j * steps + s) * 64, tiles_row(rows + at[j], 32 * s, type, head_dim));
        group[g] = copy;
        stride[g] = 64 * (size_t)steps;
    }
}

#endif
#if defined(MLXR_AMX) && defined(__AVX512BF16__)
#define MLXR_ATTEND_TILES 1

// --- Decode ---
//
// Up to 8 query heads are columns h (the query as bf16) and 8 + h (what that leaves out), so that queries and weights
// have 16 bits; up to 16 are one column each.

MLXR_INLINE int tiles_block(int heads) { return heads <= 8 ? 8 : 16; }

// Scores in lanes (key, head) as attend_scores makes them, with blocks of tiles_block(heads) heads, of up to 4 groups.
MLXR_INLINE void tiles_scores(float *scores, const uint8_t *q, int heads, const uint8_t *const *group,
                              const size_t *stride, int groups, int steps, cache_ahead *ahead, int lines) {
    float *sums = tiles_block(heads) == 16 ? scores : scores + 32 * 16;
    MLXR_FENCE();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < steps; s++) {
        _tile_loadd(6, q + 1024 * s, 64);
        _tile_loadd(4, group[0] + 64 * s, stride[0]);
        _tile_dpbf16ps(0, 4, 6);
        if (groups > 1) {
            _tile_loadd(5, group[1] + 64 * s, stride[1]);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (groups > 2) {
            _tile_loadd(4, group[2] + 64 * s, stride[2]);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (groups > 3) {
            _tile_loadd(5, group[3] + 64 * s, stride[3]);
            _tile_dpbf16ps(3, 5, 6);
        }
    }
    _tile_stored(0, sums, 64);
    if (groups > 1) _tile_stored(1, sums + 256, 64);
    if (groups > 2) _tile_stored(2, sums + 512, 64);
    if (groups > 3) _tile_stored(3, sums + 768, 64);
    MLXR_FENCE();
    if (tiles_block(heads) == 8)
        for (int j = 0; j < 16 * groups; j += 2) {
            cache_prefetch(ahead, lines);
            __m512 x = (__m512)f32_load(sums + 16 * j), y = (__m512)f32_load(sums + 16 * j + 16);
            f32_store(scores + 8 * j, (f32v)_mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee)));
        }
}

// 32 keys' weights in lanes (key, head) as a left tile: row r is column r of the scores.
MLXR_INLINE void tiles_weights(uint8_t *tile, const float *weights, int heads) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i r[16];
    MLXR_UNROLL
    for (int i = 0; i < 16; i++) {
        if (tiles_block(heads) == 16) {
            r[i] = (__m512i)bf16_pairs(f32_load(weights + 32 * i), f32_load(weights + 32 * i + 16));
            continue;
        }
        f32v p = f32_load(weights + 16 * i);
        __m512i high = _mm512_and_si512((__m512i)p, upper), low = (__m512i)(p - (f32v)high);
        __m512i even = _mm512_shuffle_i32x4(high, low, 0x44), odd = _mm512_shuffle_i32x4(high, low, 0xee);
        r[i] = _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper));
    }
    i32_transpose(r);
    MLXR_UNROLL
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(tile + 64 * i, r[i]);
}

// values[h] = values[h] * keep[h] + the weighted sum of `halves` times 32 rows. weights: that many left tiles.
// v_tiles: [halves][tiles of 16 elements, an even number] right tiles, sums: as many tiles of f32.
MLXR_INLINE void tiles_values(float *values, const float *keep, const uint8_t *weights, int heads, const uint8_t *rows,
                              const size_t *offsets, int halves, uint8_t *v_tiles, float *sums,
                              cache_ahead *ahead, int lines, int type, int head_dim, int dim) {
    const int tiles = (head_dim + 31) / 32 * 2, block = tiles_block(heads);
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
    MLXR_FENCE();
    _tile_loadd(4, weights, 64);
    if (halves > 1) _tile_loadd(5, weights + 1024, 64);
    for (int t = 0; t < tiles; t += 2) {
        const uint8_t *v = v_tiles + t * 1024;
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(6, v, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, v + 1024, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (halves > 1) {
            _tile_loadd(6, v + tiles * 1024, 64);
            _tile_dpbf16ps(0, 5, 6);
            _tile_loadd(7, v + (tiles + 1) * 1024, 64);
            _tile_dpbf16ps(1, 5, 7);
        }
        _tile_stored(0, sums + t * 256, 64);
        _tile_stored(1, sums + t * 256 + 256, 64);
    }
    MLXR_FENCE();
    for (int h = 0; h < heads; h++)
        MLXR_UNROLL_4
        for (int t = 0; t < (head_dim + 15) / 16; t++) {
            f32v sum = f32_load(sums + t * 256 + h * 16);
            if (block == 8) sum += f32_load(sums + t * 256 + (8 + h) * 16);
            float *to = values + h * dim + 16 * t;
            f32_store(to, f32_load(to) * keep[h] + sum);
        }
}

// Scratch of a decode tile, in bytes: all of it 64-byte aligned.
typedef struct {
    uint8_t *q;        // [KV heads][blocks of heads][steps of 32 elements] right tiles
    float *scores;     // [96][16]
    uint8_t *copies;   // [64][steps][64 bytes]
    uint8_t *weights;  // [2] left tiles
    uint8_t *v_tiles;  // [2][2 steps] right tiles
    float *v_sums;     // [2 steps][16][16]
} tiles_scratch;

// Adds a tile's keys, at most 64, to the results of up to 16 query heads: their maxima and sums, a vector each, and
// values. offsets hold a multiple of 32 rows.
MLXR_INLINE void tiles_decode_heads(float *values, float *maxima, float *sums, const tiles_scratch *s, const uint8_t *q,
                                    int heads, const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                    const size_t *v_offsets, cache_ahead *ahead, cache_ahead *v_ahead, int lines,
                                    int v_lines, int token_bytes, int count, float cap, int direct, int type,
                                    int head_dim, int v_row, int v_dim, int dim) {
    const int block = tiles_block(heads), halves = (count + 31) / 32;
    float keep[16];
    const uint8_t *group[4];
    size_t stride[4];
    tiles_groups(group, stride, k_rows, offsets, (count + 15) / 16, token_bytes, direct, s->copies,
                 cache_key_type(type), head_dim);
    tiles_scores(s->scores, q, heads, group, stride, (count + 15) / 16, (head_dim + 31) / 32, ahead, lines);
    attend_scale(s->scores, block, k_rows, offsets, count, cache_key_type(type), head_dim);
    if (cap) attend_cap(s->scores, 16, (count * block + 15) / 16, 16, NULL, cap);
    attend_softmax(s->scores, block, count, 32 * halves, maxima, sums, keep, ahead, lines);
    attend_scale(s->scores, block, v_rows, v_offsets, count, type, v_row);
    for (int i = 0; i < halves; i++) tiles_weights(s->weights + 1024 * i, s->scores + 32 * block * i, heads);
    tiles_values(values, keep, s->weights, heads, v_rows, v_offsets, halves, s->v_tiles, s->v_sums, v_ahead,
                 2 * v_lines, type, v_dim, dim);
}

// The queries of one KV head, [heads][dim] f32, as right tiles.
MLXR_INLINE void tiles_queries(uint8_t *q, const float *queries, int heads, int head_dim, int dim) {
    const int bytes = (head_dim + 31) / 32 * 1024;
    memset(q, 0, (size_t)((heads + 15) / 16 * bytes));
    for (int h = 0; h < heads; h++) {
        const int rest = heads - h / 16 * 16;
        tiles_column(q + h / 16 * bytes, 1024, queries + h * dim, h % 16, head_dim, rest <= 8);
    }
}

// The same as attend_decode_rows, with tiles.
MLXR_INLINE void tiles_decode_rows(float *values, float *maxima, float *sums, const tiles_scratch *s, const uint8_t *q,
                                   int heads, const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                   const size_t *v_offsets, cache_ahead *ahead, cache_ahead *v_ahead, int token_bytes,
                                   int count, float cap, int direct, int type, int head_dim, int v_row, int v_dim,
                                   int dim) {
    const int whole = heads / 16 * 16, bytes = (head_dim + 31) / 32 * 1024;
    // A quarter with the scores, a quarter with the softmax, the rest with the values; each takes two keys at a time.
    const int lines = (head_dim * cache_element_bytes(type) + 127) / 128;
    const int v_lines = ahead != v_ahead ? (v_dim * cache_element_bytes(type) + 127) / 64 : lines;
    for (int h = 0; h < whole; h += 16)
        tiles_decode_heads(values + h * dim, maxima + h, sums + h, s, q + h / 16 * bytes, 16, k_rows, v_rows, offsets,
                           v_offsets, ahead, v_ahead, h ? 0 : lines, h ? 0 : v_lines, token_bytes, count, cap, direct,
                           type, head_dim, v_row, v_dim, dim);
    if (whole < heads)
        tiles_decode_heads(values + whole * dim, maxima + whole, sums + whole, s, q + whole / 16 * bytes, heads - whole,
                           k_rows, v_rows, offsets, v_offsets, ahead, v_ahead, whole ? 0 : lines, whole ? 0 : v_lines,
                           token_bytes, count, cap, direct, type, head_dim, v_row, v_dim, dim);
}

MLXR_INLINE void tiles_decode_tile(float *values, float *maxima, float *sums, const tiles_scratch *s, const uint8_t *q,
                                   int heads, const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                   cache_ahead *ahead, int token_bytes, int count, float cap, int direct, int type,
                                   int head_dim, int dim) {
    tiles_decode_rows(values, maxima, sums, s, q, heads, k_rows, v_rows, offsets, offsets, ahead, ahead, token_bytes,
                      count, cap, direct, type, head_dim, head_dim, head_dim, dim);
}

MLXR_INLINE void tiles_decode_close(float *sums, int heads) {
    for (int h = 0; h < heads; h += 16) attend_close(sums + h, tiles_block(heads - h < 16 ? heads - h : 16));
}
#endif
