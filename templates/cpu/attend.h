// The arithmetic of attention on tiles of keys: softmax(q k^T) v in f32, online (Milakov and Gimelshein 2018).
//
// Scores are in powers of two: queries carry scale * log2(e). A row's maximum starts at MLXR_LOWEST and not at minus
// infinity, so that a row that has seen no key yet stays a number; masked scores are minus infinity.
#define MLXR_LOWEST (-3.0e38f)

// Sums in registers: of decode, and rows x vectors of columns of prefill.
#if defined(MLXR_AVX512)
#define MLXR_ATTEND_SUMS 16
#define MLXR_PRODUCT_ROWS 8
#define MLXR_PRODUCT_VECTORS 3
#elif defined(MLXR_NEON)
#define MLXR_ATTEND_SUMS 16
#define MLXR_PRODUCT_ROWS 8
#define MLXR_PRODUCT_VECTORS 2
#else
#define MLXR_ATTEND_SUMS 8
#define MLXR_PRODUCT_ROWS 4
#define MLXR_PRODUCT_VECTORS 2
#endif
#define MLXR_UNROLL_4 MLXR_PRAGMA(GCC unroll 4)

// 2^x for x <= 0, to 2 ulp; 0 from x = -127 down. 2^f over |f| <= 1/2 is fitted for the least relative error.
MLXR_INLINE f32v f32_exp2_negative(f32v x) {
    x = f32_max(f32_set1(-127.0f), x);
    f32v shifted = x + 12582912.0f;  // 1.5 * 2^23: the integer stands in the low bits
    f32v f = x - (shifted - 12582912.0f);
    f32v p = f * 1.32647273e-3f + 9.67151299e-3f;
    p = p * f + 5.55073358e-2f;
    p = p * f + 2.40222424e-1f;
    p = p * f + 6.93147004e-1f;
    p = p * f + 1.0f;
    return f32_of_bits(f32_bits(p) + (f32_bits(shifted) << 23));
}

MLXR_INLINE float f32_exp2_negative1(float x) { return f32_exp2_negative(f32_set1(x))[0]; }

#if defined(MLXR_AVX512)
// The lanes of 16 vectors exchanged with the vectors.
MLXR_INLINE void i32_transpose(__m512i *r) {
    __m512i s[16];
    MLXR_UNROLL
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    MLXR_UNROLL
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
    // Lane c of every 128 bits of r[4 g + c] is now column c of rows 4 g to 4 g + 3.
    MLXR_UNROLL
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        s[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        s[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        s[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    MLXR_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0xdd);
    }
}
#endif

// 16 rows [16][dim] as columns: to[d][0 to 15], `stride` from one d to the next. dim is a multiple of 16.
MLXR_INLINE void attend_turn(float *to, int stride, const float *rows, int dim) {
#if defined(MLXR_AVX512)
    for (int d = 0; d < dim; d += 16) {
        __m512i r[16];
        MLXR_UNROLL
        for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows + i * dim + d);
        i32_transpose(r);
        MLXR_UNROLL
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (size_t)(d + i) * stride, r[i]);
    }
#else
    for (int d = 0; d < dim; d++)
        for (int i = 0; i < 16; i++) to[(size_t)d * stride + i] = rows[i * dim + d];
#endif
}

// Scores [count][columns], rows of `stride`, times `scales` of their rows if there are such, become cap * tanh(score).
MLXR_INLINE void attend_cap(float *scores, int stride, int count, int columns, const float *scales, float cap) {
    for (int j = 0; j < count; j++)
        for (int v = 0; v < columns; v += MLXR_LANES) {
            f32v x = f32_load(scores + (size_t)j * stride + v);
            if (scales) x *= scales[j];
            f32_store(scores + (size_t)j * stride + v, f32_tanh(x) * cap);
        }
}

// A sink as a score.
MLXR_INLINE float attend_sink(float sink) {
    const float score = sink * MLXR_LOG2_E;
    return score > MLXR_LOWEST ? score : MLXR_LOWEST;
}

// --- Decode: the query heads on one KV head over a tile of keys ---
//
// The lanes of a vector of scores are (key, query head): MLXR_LANES / block keys of a group by `block` heads, a power of
// two; lane k * block + h. So one softmax serves all heads, and each row of K and V is widened once.

MLXR_INLINE int attend_block(int heads) { return heads > 8 ? 16 : heads > 4 ? 8 : heads > 2 ? 4 : heads; }

// scores[group][lane] for the keys at rows + offsets[j], j < count, without their scales; offsets hold whole groups.
// q: [heads][dim].
MLXR_INLINE void attend_scores(float *scores, const float *q, int heads, const uint8_t *rows, const size_t *offsets,
                               cache_ahead *ahead, int lines, int count, int type, int head_dim,
                               int dim) {
    const int block = attend_block(heads), keys = MLXR_LANES / block;
    for (int j = 0; j < count; j += keys) {
        cache_prefetch(ahead, keys * lines);
        const uint8_t *row[MLXR_LANES];
        f32v sums[MLXR_LANES];
        MLXR_UNROLL
        for (int i = 0; i < MLXR_LANES; i++) sums[i] = f32_zero();
        MLXR_UNROLL
        for (int i = 0; i < keys; i++) row[i] = rows + offsets[j + i];
        MLXR_UNROLL_4
        for (int c = 0; c < head_dim; c += MLXR_LANES) {
            f32v x[MLXR_LANES];
            MLXR_UNROLL
            for (int i = 0; i < keys; i++) x[i] = cache_vector_at(row[i], c, type, head_dim);
            MLXR_UNROLL
            for (int h = 0; h < heads; h++) {
                f32v y = f32_load(q + h * dim + c);
                MLXR_UNROLL
                for (int i = 0; i < keys; i++) sums[i * block + h] = f32_fma(x[i], y, sums[i * block + h]);
            }
        }
        f32_store(scores + j * block, f32_sums(sums));
    }
}

// Multiplies scores, or weights, of blocks of `block` heads by the scales of their rows, where rows have such.
MLXR_INLINE void attend_scale(float *scores, int block, const uint8_t *rows, const size_t *offsets, int count, int type,
                              int head_dim) {
    if (type != MLXR_CACHE_Q8) return;
    i32v lane;
    MLXR_UNROLL
    for (int i = 0; i < MLXR_LANES; i++) lane[i] = i / block;
    const int keys = MLXR_LANES / block;
    for (int j = 0; j < count; j += keys) {
        f32v scale = f32_set1(cache_scale(rows + offsets[j], type, head_dim));
        MLXR_UNROLL
        for (int i = 1; i < keys; i++)
            scale = f32_select(lane == i, f32_set1(cache_scale(rows + offsets[j + i], type, head_dim)), scale);
        f32_store(scores + j * block, f32_load(scores + j * block) * scale);
    }
}

// Scores of blocks of `block` heads become weights in place; those of keys from `count` to `end` become 0. Updates the
// heads' maxima (each in all lanes of its head) and sums (a head's sum is that of its lanes) and stores what the values
// so far are to be multiplied by. end * block is a multiple of MLXR_LANES.
MLXR_INLINE void attend_softmax(float *scores, int block, int count, int end, float *maxima, float *sums, float *keep,
                                cache_ahead *ahead, int lines) {
    for (int i = count * block; i < end * block; i++) scores[i] = -__builtin_inff();
    const f32v before = f32_load(maxima);
    f32v largest = before;
    for (int i = 0; i < end * block; i += MLXR_LANES) largest = f32_max(largest, f32_load(scores + i));
    float lanes[MLXR_LANES];
    f32_store(lanes, largest);
    MLXR_UNROLL
    for (int n = MLXR_LANES / 2; n >= block; n /= 2)
        MLXR_UNROLL
        for (int i = 0; i < n; i++) lanes[i] = lanes[i] > lanes[i + n] ? lanes[i] : lanes[i + n];
    MLXR_UNROLL
    for (int i = block; i < MLXR_LANES; i++) lanes[i] = lanes[i % block];
    const f32v now = f32_load(lanes), kept = f32_exp2_negative(before - now);
    f32v total = f32_load(sums) * kept;
    for (int i = 0; i < end * block; i += MLXR_LANES) {
        cache_prefetch(ahead, lines);
        f32v p = f32_exp2_negative(f32_load(scores + i) - now);
        f32_store(scores + i, p);
        total += p;
    }
    f32_store(maxima, now);
    f32_store(sums, total);
    f32_store(keep, kept);
}

// Adds up the lanes of each head: head h's sum is then lane h.
MLXR_INLINE void attend_close(float *sums, int block) {
    for (int h = 0; h < block; h++)
        for (int i = h + block; i < MLXR_LANES; i += block) sums[h] += sums[i];
}

// Elements [at, at + vectors * MLXR_LANES) of values[h] = values[h] * keep[h] + sum over j < count of weight * row j.
// heads * vectors sums stay in registers.
MLXR_INLINE void attend_values_part(float *values, const float *keep, const float *weights, int heads,
                                    const uint8_t *rows, const size_t *offsets, cache_ahead *ahead, int lines, int count, int type, int head_dim, int dim, int at, int vectors) {
    const int block = attend_block(heads);
    f32v sums[MLXR_ATTEND_SUMS];
    MLXR_UNROLL
    for (int h = 0; h < heads; h++)
        MLXR_UNROLL
        for (int c = 0; c < vectors; c++)
            sums[h * vectors + c] = f32_load(values + h * dim + at + c * MLXR_LANES) * keep[h];
    for (int j = 0; j < count; j++) {
        const uint8_t *row = rows + offsets[j];
        cache_prefetch(ahead, lines);
        f32v x[MLXR_ATTEND_SUMS];
        MLXR_UNROLL
        for (int c = 0; c < vectors; c++) x[c] = cache_vector_at(row, at + c * MLXR_LANES, type, head_dim);
        MLXR_UNROLL
        for (int h = 0; h < heads; h++) {
            f32v p = f32_set1(weights[j * block + h]);
            MLXR_UNROLL
            for (int c = 0; c < vectors; c++) sums[h * vectors + c] = f32_fma(p, x[c], sums[h * vectors + c]);
        }
    }
    MLXR_UNROLL
    for (int h = 0; h < heads; h++)
        MLXR_UNROLL
        for (int c = 0; c < vectors; c++)
            f32_store(values + h * dim + at + c * MLXR_LANES, sums[h * vectors + c]);
}

// values[h] = values[h] * keep[h] + the weighted sum of the rows at rows + offsets[j], j < count.
MLXR_INLINE void attend_values(float *values, const float *keep, const float *weights, int heads, const uint8_t *rows,
                               const size_t *offsets, cache_ahead *ahead, int lines, int count,
                               int type, int head_dim, int dim) {
    const int all = MLXR_HEAD_VECTORS(head_dim), fit = MLXR_ATTEND_SUMS / heads, vectors = fit < all ? fit : all;
    const int whole = all / vectors * vectors, spare = all % vectors;
#define MLXR_VALUES(c) \
    attend_values_part(values, keep, weights, heads, rows, offsets, ahead, c ? 0 : lines, count, type, head_dim, dim, \
                       c * MLXR_LANES, vectors)
    if (type == MLXR_CACHE_Q4) {  // which bits of a byte are read depends on the place
        MLXR_UNROLL
        for (int c = 0; c < whole; c += vectors) MLXR_VALUES(c);
    } else {
        for (int c = 0; c < whole; c += vectors) MLXR_VALUES(c);
    }
#undef MLXR_VALUES
    if (spare)
        attend_values_part(values, keep, weights, heads, rows, offsets, ahead, 0, count, type, head_dim, dim,
                           whole * MLXR_LANES, spare);
}

// Adds a tile's keys to the results of up to MLXR_LANES query heads: their maxima and sums, a vector each, and values.
MLXR_INLINE void attend_decode_heads(float *values, float *maxima, float *sums, float *scores, const float *q, int heads,
                                     const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                     const size_t *v_offsets, cache_ahead *ahead, cache_ahead *v_ahead, int lines,
                                     int v_lines, int count, float cap, int type, int head_dim, int v_row, int v_dim,
                                     int dim) {
    const int block = attend_block(heads), keys = MLXR_LANES / block;
    float keep[MLXR_LANES];
    attend_scores(scores, q, heads, k_rows, offsets, ahead, lines, count, cache_key_type(type), head_dim, dim);
    attend_scale(scores, block, k_rows, offsets, count, cache_key_type(type), head_dim);
    if (cap) attend_cap(scores, MLXR_LANES, (count + keys - 1) / keys, MLXR_LANES, NULL, cap);
    attend_softmax(scores, block, count, (count + keys - 1) / keys * keys, maxima, sums, keep, ahead, 0);
    attend_scale(scores, block, v_rows, v_offsets, count, type, v_row);
    attend_values(values, keep, scores, heads, v_rows, v_offsets, v_ahead, v_lines, count, type, v_dim, dim);
}

// The same for any number of heads: h's maximum and sum are lane h % MLXR_LANES of vector h / MLXR_LANES. `cap`: 0, or
// scores become cap * tanh(score). `type` is that of values. The first v_dim of the v_row elements of a row of V are
// summed. Where V has rows of another size than K, its offsets are other ones, and what is read next is one for K and
// one for V.
MLXR_INLINE void attend_decode_rows(float *values, float *maxima, float *sums, float *scores, const float *q, int heads,
                                    const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                    const size_t *v_offsets, cache_ahead *ahead, cache_ahead *v_ahead, int count,
                                    float cap, int type, int head_dim, int v_row, int v_dim, int dim) {
    const int whole = heads / MLXR_LANES * MLXR_LANES, apart = ahead != v_ahead;
    // Half with the scores, half with the values.
    const int lines = (head_dim * cache_element_bytes(type) + 127) / (apart ? 64 : 128);
    const int v_lines = apart ? (v_dim * cache_element_bytes(type) + 127) / 64 : lines;
    for (int h = 0; h < whole; h += MLXR_LANES)
        attend_decode_heads(values + h * dim, maxima + h, sums + h, scores, q + h * dim, MLXR_LANES, k_rows, v_rows,
                            offsets, v_offsets, ahead, v_ahead, h ? 0 : lines, h ? 0 : v_lines, count, cap, type,
                            head_dim, v_row, v_dim, dim);
    if (whole < heads)
        attend_decode_heads(values + whole * dim, maxima + whole, sums + whole, scores, q + whole * dim, heads - whole,
                            k_rows, v_rows, offsets, v_offsets, ahead, v_ahead, whole ? 0 : lines,
                            whole ? 0 : v_lines, count, cap, type, head_dim, v_row, v_dim, dim);
}

MLXR_INLINE void attend_decode_tile(float *values, float *maxima, float *sums, float *scores, const float *q, int heads,
                                    const uint8_t *k_rows, const uint8_t *v_rows, const size_t *offsets,
                                    cache_ahead *ahead, int count, float cap, int type, int head_dim, int dim) {
    attend_decode_rows(values, maxima, sums, scores, q, heads, k_rows, v_rows, offsets, offsets, ahead, ahead, count, cap,
                       type, head_dim, head_dim, head_dim, dim);
}

MLXR_INLINE void attend_decode_close(float *sums, int heads) {
    for (int h = 0; h < heads; h += MLXR_LANES)
        attend_close(sums + h, attend_block(heads - h < MLXR_LANES ? heads - h : MLXR_LANES));
}

// --- Prefill: a tile of queries, one a lane, over a tile of keys ---

// c[i][v] = c[i][v] * keep[v] + sum over k < depth of a[i * a_row + k * a_step] * b[k][v]; keep NULL: without c's old
// value. c and b have rows of `stride` floats. i < rows and `vectors` of v: small literals.
MLXR_INLINE void attend_product_block(float *c, const float *keep, const float *a, int a_row, int a_step,
                                      const float *b, int stride, int depth, int rows, int vectors) {
    f32v sums[MLXR_PRODUCT_ROWS * MLXR_PRODUCT_VECTORS];
    MLXR_UNROLL
    for (int i = 0; i < rows; i++)
        MLXR_UNROLL
        for (int v = 0; v < vectors; v++)
            sums[i * vectors + v] = keep ? f32_load(c + (size_t)i * stride + v * MLXR_LANES) * f32_load(keep + v * MLXR_LANES)
                                         : f32_zero();
    for (int k = 0; k < depth; k++) {
        f32v x[MLXR_PRODUCT_VECTORS];
        MLXR_UNROLL
        for (int v = 0; v < vectors; v++) x[v] = f32_load(b + (size_t)k * stride + v * MLXR_LANES);
        MLXR_UNROLL
        for (int i = 0; i < rows; i++) {
            f32v y = f32_set1(a[(size_t)i * a_row + (size_t)k * a_step]);
            MLXR_UNROLL
            for (int v = 0; v < vectors; v++) sums[i * vectors + v] = f32_fma(y, x[v], sums[i * vectors + v]);
        }
    }
    MLXR_UNROLL
    for (int i = 0; i < rows; i++)
        MLXR_UNROLL
        for (int v = 0; v < vectors; v++) f32_store(c + (size_t)i * stride + v * MLXR_LANES, sums[i * vectors + v]);
}

MLXR_INLINE void attend_product_columns(float *c, const float *keep, const float *a, int a_row, int a_step,
                                        const float *b, int stride, int depth, int rows, int vectors) {
    for (int i = 0; i < rows; i += MLXR_PRODUCT_ROWS)
        attend_product_block(c + (size_t)i * stride, keep, a + (size_t)i * a_row, a_row, a_step, b, stride, depth,
                             MLXR_PRODUCT_ROWS, vectors);
}

// The same for any multiple of 8 rows and any multiple of 16 columns.
MLXR_INLINE void attend_product(float *c, const float *keep, const float *a, int a_row, int a_step, const float *b,
                                int stride, int depth, int rows, int columns) {
    int v = 0;
    for (; v + MLXR_PRODUCT_VECTORS * MLXR_LANES <= columns; v += MLXR_PRODUCT_VECTORS * MLXR_LANES)
        attend_product_columns(c + v, keep ? keep + v : NULL, a, a_row, a_step, b + v, stride, depth, rows,
                               MLXR_PRODUCT_VECTORS);
    if (MLXR_PRODUCT_VECTORS > 2 && columns - v == 2 * MLXR_LANES)
        attend_product_columns(c + v, keep ? keep + v : NULL, a, a_row, a_step, b + v, stride, depth, rows, 2);
    if (columns - v == MLXR_LANES)
        attend_product_columns(c + v, keep ? keep + v : NULL, a, a_row, a_step, b + v, stride, depth, rows, 1);
}

// Scores [count][stride] of keys that a query does not see become minus infinity: key j of the tile has position
// first + j; column v has positions[v] and sees `window` keys up to it (0: all).
MLXR_INLINE void attend_mask(float *scores, int stride, const int32_t *positions, int first, int count, int columns,
                             int window) {
    const f32v hidden = f32_set1(-__builtin_inff());
    for (int j = 0; j < count; j++)
        for (int v = 0; v < columns; v += MLXR_LANES) {
            i32v distance = i32_load(positions + v) - (first + j);
            i32v unseen = distance < 0;
            if (window) unseen |= distance >= window;
            float *p = scores + (size_t)j * stride + v;
            f32_store(p, f32_select(unseen, hidden, f32_load(p)));
        }
}

// The same where a column sees the keys of its own chunk up to it: position p those from p / chunk * chunk on.
MLXR_INLINE void attend_mask_chunks(float *scores, int stride, const int32_t *positions, int first, int count,
                                    int columns, int chunk) {
    for (int v = 0; v < columns; v++) {
        const int begin = positions[v] / chunk * chunk - first, end = positions[v] + 1 - first;
        for (int j = 0; j < count; j++)
            if (j < begin || j >= end) scores[(size_t)j * stride + v] = -__builtin_inff();
    }
}

// Scores become weights in place, column by column, and those from `count` on zeros, up to a multiple of MLXR_LANES; keep
// receives what the values so far are to be multiplied by. A tile's weights are added up as attend_softmax_row, whose
// lanes are keys, adds them.
MLXR_INLINE void attend_softmax_columns(float *scores, int stride, int count, int columns, float *maximum, float *sum,
                                        float *keep) {
    for (int v = 0; v < columns; v += MLXR_LANES) {
        const f32v before = f32_load(maximum + v);
        f32v now = before, totals[MLXR_LANES];
        for (int j = 0; j < count; j++) now = f32_max(now, f32_load(scores + (size_t)j * stride + v));
        for (int j = count; j % MLXR_LANES; j++) f32_store(scores + (size_t)j * stride + v, f32_set1(-__builtin_inff()));
        const f32v kept = f32_exp2_negative(before - now);
        MLXR_UNROLL
        for (int i = 0; i < MLXR_LANES; i++) totals[i] = f32_zero();
        for (int j = 0; j < count; j += MLXR_LANES)
            MLXR_UNROLL
            for (int i = 0; i < MLXR_LANES; i++) {
                float *at = scores + (size_t)(j + i) * stride + v;
                f32v p = f32_exp2_negative(f32_load(at) - now);
                f32_store(at, p);
                totals[i] += p;
            }
        MLXR_UNROLL
        for (int n = MLXR_LANES / 2; n > 0; n /= 2)
            MLXR_UNROLL
            for (int i = 0; i < n; i++) totals[i] += totals[i + n];
        f32_store(maximum + v, now);
        f32_store(sum + v, f32_fma(f32_load(sum + v), kept, totals[0]));
        f32_store(keep + v, kept);
    }
}

// Columns [0, count) of values [head_dim][width], times weights[column], as rows: column i goes to to[i]. count <= 16.
MLXR_INLINE void attend_results(float *const *to, int count, const float *values, int width, const float *weights,
                                int head_dim) {
#if defined(MLXR_AVX512)
    const __m512 factor = _mm512_loadu_ps(weights);
    for (int d = 0; d < head_dim; d += 16) {
        const int rows = head_dim - d < 16 ? 8 : 16;
        __m512i r[16];
        MLXR_UNROLL
        for (int i = 0; i < 16; i++)
            r[i] = i < rows ? (__m512i)_mm512_mul_ps(_mm512_loadu_ps(values + (size_t)(d + i) * width), factor)
                            : _mm512_setzero_si512();
        i32_transpose(r);
        MLXR_UNROLL
        for (int i = 0; i < 16; i++)
            if (i < count) _mm512_mask_storeu_epi32(to[i] + d, (__mmask16)((1u << rows) - 1u), r[i]);
    }
#else
    for (int i = 0; i < count; i++)
        for (int d = 0; d < head_dim; d++) to[i][d] = values[(size_t)d * width + i] * weights[i];
#endif
}

// The sigmoid of a number, or its softplus.
MLXR_INLINE float attend_gate_of(float x, int softplus) {
    if (!softplus) return 1.0f / (1.0f + expf(-x));
    return (x > 0.0f ? x : 0.0f) + logf(1.0f + expf(-__builtin_fabsf(x)));
}

// A head's result times its gate: one number for all of its elements, or one for each.
MLXR_INLINE void attend_gate(float *y, const float *gate, int head_dim, int of_elements, int softplus) {
    if (of_elements && !softplus) {
        for (int d = 0; d < head_dim; d += MLXR_LANES)
            f32_store_at(y, d, head_dim, f32_load_at(y, d, head_dim) * f32_sigmoid(f32_load_at(gate, d, head_dim)));
        return;
    }
    const float one = attend_gate_of(gate[0], softplus);
    for (int d = 0; d < head_dim; d++) y[d] *= of_elements ? attend_gate_of(gate[d], softplus) : one;
}
