// What is done with packed panels, for all formats: the loops, with the format and the number of rows as literals.
//
// Every function goes over blocks, over 32 columns at a time (s), and over the parts of a panel.
enum { MLXR_Q8_0, MLXR_Q4_0, MLXR_Q4_K, MLXR_Q5_K, MLXR_Q6_K };

// How far ahead of the weights in use memory is asked for more, in bytes.
#define MLXR_AHEAD 2048

// Loops over parts: unrolled where there are two, unless that wants more registers than there are.
#define MLXR_ROLL MLXR_PRAGMA(GCC unroll 1)
#if MLXR_LANES >= 8
#define MLXR_UNROLL_PARTS MLXR_UNROLL
#else
#define MLXR_UNROLL_PARTS MLXR_ROLL
#endif

MLXR_INLINE int columns_of(int format) { return format == MLXR_Q8_0 || format == MLXR_Q4_0 ? 32 : 256; }

// What is taken off each weight, and whether there are minima.
MLXR_INLINE int bias_of(int format) { return format == MLXR_Q4_0 ? 8 : format == MLXR_Q6_K ? 32 : 0; }
MLXR_INLINE int has_minima(int format) { return format == MLXR_Q4_K || format == MLXR_Q5_K; }

// Bytes that 32 columns of a panel take.
MLXR_INLINE int step_of(int format) {
    switch (format) {
        case MLXR_Q8_0: return 16 * Q8_0_BYTES;
        case MLXR_Q4_0: return 16 * Q4_0_BYTES;
        case MLXR_Q4_K: return 2 * Q4_K_BYTES;
        case MLXR_Q5_K: return 2 * Q5_K_BYTES;
        default: return 2 * Q6_K_BYTES;
    }
}

MLXR_INLINE void open_block(int format, const uint8_t *panel, int K, int b, mlxr_block *at) {
    switch (format) {
        case MLXR_Q8_0: q8_0_open(panel, K / 32, b, at); break;
        case MLXR_Q4_0: q4_0_open(panel, K / 32, b, at); break;
        case MLXR_Q4_K: q4_k_open(panel, b, at); break;
        case MLXR_Q5_K: q5_k_open(panel, b, at); break;
        default: q6_k_open(panel, K / 256, b, at);
    }
}

MLXR_INLINE void read_weights(int format, const mlxr_block *at, int s, int part, mlxr_weights *out) {
    switch (format) {
        case MLXR_Q8_0: q8_0_read(at, part, out); break;
        case MLXR_Q4_0: q4_0_read(at, part, out); break;
        case MLXR_Q4_K: q4_k_read(at, s, part, out); break;
        case MLXR_Q5_K: q5_k_read(at, s, part, out); break;
        default: q6_k_read(at, s, part, out);
    }
}

MLXR_INLINE int bits_of(int format) {
    return format == MLXR_Q8_0 ? 8 : format == MLXR_Q5_K ? 5 : format == MLXR_Q6_K ? 6 : 4;
}

// acc[i][part] += 32 columns of a part times those of m rows, `offset` bytes into each.
MLXR_INLINE void dot32(int format, const mlxr_weights *w, const mlxr_act *a, size_t offset, int m, int part,
                       f32v acc[8][MLXR_PARTS]) {
    const mlxr_act_block *x[8];
    const int8_t *q[8];
    i32v sums[8][2];
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        x[i] = (const mlxr_act_block *)((const uint8_t *)a[i].blocks + offset);
        q[i] = x[i]->q;
        sums[i][0] = sums[i][1] = i32_zero();
        if (format == MLXR_Q8_0 && MLXR_SIGNED_BY_128) sums[i][0] = i32_set1(x[i]->start128);
        if (format == MLXR_Q4_0) sums[i][0] = i32_set1(x[i]->start8);
        if (format == MLXR_Q6_K) sums[i][0] = i32_set1(x[i]->start32[0]), sums[i][1] = i32_set1(x[i]->start32[1]);
    }
    dot_groups(w->w, bits_of(format), format == MLXR_Q6_K, q, m, sums);
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        if (has_minima(format)) acc[i][part] -= w->m * f32_set1(x[i]->sum);
        acc[i][part] += f32_of_i32(sums[i][0]) * (w->d[0] * f32_set1(x[i]->d));
        if (format == MLXR_Q6_K) acc[i][part] += f32_of_i32(sums[i][1]) * (w->d[1] * f32_set1(x[i]->d));
    }
}

// out[i][row] = the panel's row times activation row i.
MLXR_INLINE void panel_dot(int format, const uint8_t *panel, int K, const mlxr_act *a, int m, float (*out)[16]) {
    f32v acc[8][MLXR_PARTS];
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) acc[i][p] = f32_zero();
    }
    size_t offset = 0;
    const uint8_t *ahead = panel + MLXR_AHEAD;
    for (int b = 0; b < K / columns_of(format); b++) {
        mlxr_block at;
        open_block(format, panel, K, b, &at);
        for (int s = 0; s < columns_of(format) / 32; s++) {
            MLXR_UNROLL for (int i = 0; i < step_of(format); i += 64) prefetch(ahead + i);
            ahead += step_of(format);
            MLXR_ROLL for (int p = 0; p < MLXR_PARTS; p++) {
                mlxr_weights w;
                read_weights(format, &at, s, p, &w);
                dot32(format, &w, a, offset, m, p, acc);
            }
            offset += sizeof(mlxr_act_block);
        }
    }
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) f32_store(out[i] + MLXR_LANES * p, acc[i][p]);
    }
}

// Column c (0..3) of a group as numbers, the bias taken off. Up to 5 bits are looked up: a permutation reads no more of
// a lane, so that nothing need be masked, and its table holds floats.
MLXR_INLINE f32v column_of(int format, i8v group, int c) {
    u32v bytes = (u32v)group >> 8 * c;
    if (format == MLXR_Q8_0) return f32_of_i32((i32v)((u32v)group << (24 - 8 * c)) >> 24);
#if defined(MLXR_AVX512)
    const f32v low = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (format == MLXR_Q4_0) return (f32v)_mm512_permutexvar_ps((__m512i)bytes, (__m512)(low - 8.0f));
    if (format == MLXR_Q4_K) return (f32v)_mm512_permutexvar_ps((__m512i)bytes, (__m512)low);
    if (format == MLXR_Q5_K)
        return (f32v)_mm512_permutex2var_ps((__m512)low, (__m512i)bytes, (__m512)(low + 16.0f));
#endif
    return f32_of_i32((i32v)(bytes & 255) - bias_of(format));
}

// The same with activations in f32: x[i] are rows of K.
MLXR_INLINE void panel_dot_exact(int format, const uint8_t *panel, int K, const float *const *x, int m,
                                 float (*out)[16]) {
    f32v acc[4][MLXR_PARTS];
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) acc[i][p] = f32_zero();
    }
    int k = 0;
    const uint8_t *ahead = panel + MLXR_AHEAD;
    for (int b = 0; b < K / columns_of(format); b++) {
        mlxr_block at;
        open_block(format, panel, K, b, &at);
        for (int s = 0; s < columns_of(format) / 32; s++, k += 32) {
            MLXR_UNROLL for (int i = 0; i < step_of(format); i += 64) prefetch(ahead + i);
            ahead += step_of(format);
            float total[4];
            MLXR_UNROLL for (int i = 0; i < m; i++) {
                if (!has_minima(format)) continue;
                f32v sum = f32_load(x[i] + k);
                MLXR_UNROLL for (int c = MLXR_LANES; c < 32; c += MLXR_LANES) sum += f32_load(x[i] + k + c);
                total[i] = f32_sum(sum);
            }
            MLXR_UNROLL_PARTS for (int p = 0; p < MLXR_PARTS; p++) {
                mlxr_weights w;
                read_weights(format, &at, s, p, &w);
                f32v sums[4][2];
                MLXR_UNROLL for (int i = 0; i < m; i++) sums[i][0] = sums[i][1] = f32_zero();
                MLXR_UNROLL for (int c = 0; c < 32; c++) {
                    f32v column = column_of(format, w.w[c / 4], c % 4);
                    MLXR_UNROLL for (int i = 0; i < m; i++) sums[i][c / 16] += column * f32_set1(x[i][k + c]);
                }
                MLXR_UNROLL for (int i = 0; i < m; i++) {
                    acc[i][p] += sums[i][0] * w.d[0] + sums[i][1] * w.d[1];
                    if (has_minima(format)) acc[i][p] -= w.m * f32_set1(total[i]);
                }
            }
        }
    }
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) f32_store(out[i] + MLXR_LANES * p, acc[i][p]);
    }
}

// Weights k0..k1 (multiples of 32) as f32, [k1 - k0][16], or (`bf16`) as bf16, [(k1 - k0) / 2][16][2].
MLXR_INLINE void panel_widen(int format, const uint8_t *panel, int K, int k0, int k1, int bf16, void *dst) {
    const int columns = columns_of(format);
    const uint8_t *ahead = panel + (size_t)step_of(format) * (k0 / 32) + MLXR_AHEAD;
    for (int k = k0; k < k1;) {
        mlxr_block at;
        open_block(format, panel, K, k / columns, &at);
        for (int s = k % columns / 32; s < columns / 32 && k < k1; s++, k += 32) {
            MLXR_UNROLL for (int i = 0; i < step_of(format); i += 64) prefetch(ahead + i);
            ahead += step_of(format);
            MLXR_UNROLL_PARTS for (int p = 0; p < MLXR_PARTS; p++) {
                mlxr_weights w;
                read_weights(format, &at, s, p, &w);
                MLXR_UNROLL for (int c = 0; c < 32; c += 2) {
                    f32v low = column_of(format, w.w[c / 4], c % 4) * w.d[c / 16];
                    f32v high = column_of(format, w.w[c / 4], c % 4 + 1) * w.d[c / 16];
                    if (has_minima(format)) low -= w.m, high -= w.m;
                    if (bf16) {
                        i32_store((uint16_t *)dst + 16 * c + 2 * MLXR_LANES * p, bf16_pairs(low, high));
                    } else {
                        f32_store((float *)dst + 16 * c + MLXR_LANES * p, low);
                        f32_store((float *)dst + 16 * c + 16 + MLXR_LANES * p, high);
                    }
                }
            }
            dst = (uint8_t *)dst + (bf16 ? 2 : 4) * 32 * 16;
        }
    }
}

#define MLXR_PANEL_FUNCTIONS(name, format)                                                                             \
    MLXR_INLINE void name##_dot(const uint8_t *panel, int K, const mlxr_act *a, int m, float (*out)[16]) {             \
        panel_dot(format, panel, K, a, m, out);                                                                        \
    }                                                                                                                  \
    MLXR_INLINE void name##_dot_exact(const uint8_t *panel, int K, const float *const *x, int m, float (*out)[16]) {   \
        panel_dot_exact(format, panel, K, x, m, out);                                                                  \
    }                                                                                                                  \
    MLXR_INLINE void name##_panel_f32(const uint8_t *panel, int K, int k0, int k1, float *dst) {                       \
        panel_widen(format, panel, K, k0, k1, 0, dst);                                                                 \
    }                                                                                                                  \
    MLXR_INLINE void name##_panel_bf16(const uint8_t *panel, int K, int k0, int k1, uint16_t *dst) {                   \
        panel_widen(format, panel, K, k0, k1, 1, dst);                                                                 \
    }
MLXR_PANEL_FUNCTIONS(q8_0, MLXR_Q8_0)
MLXR_PANEL_FUNCTIONS(q4_0, MLXR_Q4_0)
MLXR_PANEL_FUNCTIONS(q4_k, MLXR_Q4_K)
MLXR_PANEL_FUNCTIONS(q5_k, MLXR_Q5_K)
MLXR_PANEL_FUNCTIONS(q6_k, MLXR_Q6_K)
