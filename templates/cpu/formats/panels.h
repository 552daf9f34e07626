// What is done with packed panels, for all formats: the loops, with the format and the number of rows as literals.
//
// Every function goes over blocks, over 32 columns at a time (s), and over the parts of a panel.
typedef struct {
    int columns;           // of a block
    int step;              // bytes that 32 columns of a panel take
    int bits;              // of a number in memory; those of 8 are signed
    int bias;              // what is taken off each number
    int split;             // every 16 columns have a scale (and a minimum), else every 32
    int minima;            // whether there are any
    int rounds;            // whether a scale times a number may be no float
    const int8_t *values;  // what numbers of 4 bits stand for, or NULL
    void (*open)(const uint8_t *panel, int blocks, int b, mlxr_block *at);
    void (*read)(const mlxr_block *at, int s, int part, mlxr_weights *out);
} mlxr_format;

// How far ahead of the weights in use memory is asked for more, in bytes.
#define MLXR_AHEAD 2048

// Loops over parts: unrolled where there are two, unless that wants more registers than there are.
#define MLXR_ROLL MLXR_PRAGMA(GCC unroll 1)
#if MLXR_LANES >= 8
#define MLXR_UNROLL_PARTS MLXR_UNROLL
#else
#define MLXR_UNROLL_PARTS MLXR_ROLL
#endif

// What a sum of 32 columns, or of a half of them, starts from, so that biases are taken off. Unsigned, because rows that
// nobody reads may hold anything.
MLXR_INLINE int32_t sum_start(const mlxr_format *f, const mlxr_act_block *x, int half) {
    if (f->split) return f->bias == 32 ? x->start32[half] : f->bias ? x->start32[half] >> 3 : 0;
    const uint32_t by_128 = (uint32_t)x->start128, by_8 = (uint32_t)x->start8;
    if (f->bits == 8 || f->values) {
        return (int32_t)((MLXR_SIGNED_BY_128 ? by_128 : 0) - (f->bias == -128 ? by_128 : 0));
    }
    return (int32_t)(f->bias == 16 ? 2 * by_8 : f->bias ? by_8 : 0);
}

// acc[i][part] += 32 columns of a part times those of m rows, `offset` bytes into each.
MLXR_INLINE void dot32(const mlxr_format *f, const mlxr_weights *w, const mlxr_act *a, size_t offset, int m, int part,
                       f32v acc[8][MLXR_PARTS]) {
    const mlxr_act_block *x[8];
    const int8_t *q[8];
    i32v sums[8][2];
    i8v numbers[8];
    MLXR_UNROLL for (int g = 0; g < 8; g++) numbers[g] = f->values ? look_up(f->values, w->w[g]) : w->w[g];
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        x[i] = (const mlxr_act_block *)((const uint8_t *)a[i].blocks + offset);
        q[i] = x[i]->q;
        sums[i][0] = i32_set1(sum_start(f, x[i], 0));
        sums[i][1] = i32_set1(sum_start(f, x[i], 1));
    }
    dot_groups(numbers, f->values ? 8 : f->bits, f->split, q, m, sums);
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        f32v *to = &acc[i][part];
        if (f->minima && !f->split) *to = f32_fma(w->m[0], f32_set1(x[i]->sum), *to);
        if (f->minima && f->split) {
            *to = f32_fma(w->m[0], f32_set1(x[i]->sums[0]), *to);
            *to = f32_fma(w->m[1], f32_set1(x[i]->sums[1]), *to);
        }
        *to = f32_fma(f32_of_i32(sums[i][0]), w->d[0] * f32_set1(x[i]->d), *to);
        if (f->split) *to = f32_fma(f32_of_i32(sums[i][1]), w->d[1] * f32_set1(x[i]->d), *to);
    }
}

// out[i][row] = the panel's row times activation row i.
MLXR_INLINE void panel_dot(const mlxr_format *f, const uint8_t *panel, int K, const mlxr_act *a, int m,
                           float (*out)[16]) {
    f32v acc[8][MLXR_PARTS];
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) acc[i][p] = f32_zero();
    }
    size_t offset = 0;
    const uint8_t *ahead = panel + MLXR_AHEAD;
    for (int b = 0; b < K / f->columns; b++) {
        mlxr_block at;
        f->open(panel, K / f->columns, b, &at);
        for (int s = 0; s < f->columns / 32; s++) {
            MLXR_UNROLL for (int i = 0; i < f->step; i += 64) prefetch(ahead + i);
            ahead += f->step;
            MLXR_ROLL for (int p = 0; p < MLXR_PARTS; p++) {
                mlxr_weights w;
                f->read(&at, s, p, &w);
                dot32(f, &w, a, offset, m, p, acc);
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
MLXR_INLINE f32v column_of(const mlxr_format *f, i8v group, int c) {
#if defined(MLXR_AVX512)
    const f32v low = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float bias = (float)f->bias;
    const __m512i index = (__m512i)((u32v)group >> 8 * c);
    if (f->values) return (f32v)_mm512_permutexvar_ps(index, (__m512)f32_of_i32(i32_load8(f->values)));
    if (f->bits <= 4) return (f32v)_mm512_permutexvar_ps(index, (__m512)(low - bias));
    if (f->bits == 5) return (f32v)_mm512_permutex2var_ps((__m512)(low - bias), index, (__m512)(low + 16.0f - bias));
#endif
    if (f->values) group = look_up(f->values, group);
    i32v number = (i32v)((u32v)group << (24 - 8 * c));
    number = f->bits == 8 || f->values ? number >> 24 : (i32v)((u32v)number >> 24);
    return f32_of_i32(number - f->bias);
}

// The same with activations in f32: x[i] are rows of K, and totals[i] the sums of their sixteens. An output's sum takes
// the same steps in the same order whatever m is.
MLXR_INLINE void panel_dot_exact(const mlxr_format *f, const uint8_t *panel, int K, const float *const *x,
                                 const float *const *totals, int m, float (*out)[16]) {
    f32v acc[8][MLXR_PARTS];
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) acc[i][p] = f32_zero();
    }
    int k = 0;
    const uint8_t *ahead = panel + MLXR_AHEAD;
    for (int b = 0; b < K / f->columns; b++) {
        mlxr_block block;
        f->open(panel, K / f->columns, b, &block);
        for (int s = 0; s < f->columns / 32; s++, k += 32) {
            MLXR_UNROLL for (int i = 0; i < f->step; i += 64) prefetch(ahead + i);
            ahead += f->step;
            MLXR_UNROLL_PARTS for (int p = 0; p < MLXR_PARTS; p++) {
                mlxr_weights w;
                f->read(&block, s, p, &w);
                f32v sums[8][2];
                MLXR_UNROLL for (int i = 0; i < m; i++) sums[i][0] = sums[i][1] = f32_zero();
                MLXR_UNROLL for (int c = 0; c < 32; c++) {
                    f32v column = column_of(f, w.w[c / 4], c % 4);
                    MLXR_UNROLL for (int i = 0; i < m; i++)
                        sums[i][c / 16] = f32_fma(f32_set1(x[i][k + c]), column, sums[i][c / 16]);
                }
                MLXR_UNROLL for (int half = 0; half < 2; half++) {
                    MLXR_UNROLL for (int i = 0; i < m; i++) {
                        acc[i][p] = f32_fma(sums[i][half], w.d[half], acc[i][p]);
                        if (f->minima) acc[i][p] = f32_fma(w.m[half], f32_set1(totals[i][k / 16 + half]), acc[i][p]);
                    }
                }
            }
        }
    }
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) f32_store(out[i] + MLXR_LANES * p, acc[i][p]);
    }
}

// Column c of 32, as numbers. Where a product may need rounding it is rounded by itself, not with the sum.
MLXR_INLINE f32v weight_of(const mlxr_format *f, const mlxr_weights *w, int c) {
    f32v product = column_of(f, w->w[c / 4], c % 4) * w->d[c / 16];
    if (f->rounds) product = f32_rounded(product);
    return f->minima ? product + w->m[c / 16] : product;
}

// Weights k0..k1 (multiples of 32) as f32, [k1 - k0][16], or (`bf16`) as bf16, [(k1 - k0) / 2][16][2].
MLXR_INLINE void panel_widen(const mlxr_format *f, const uint8_t *panel, int K, int k0, int k1, int bf16, void *dst) {
    const uint8_t *ahead = panel + (size_t)f->step * (k0 / 32) + MLXR_AHEAD;
    for (int k = k0; k < k1;) {
        mlxr_block at;
        f->open(panel, K / f->columns, k / f->columns, &at);
        for (int s = k % f->columns / 32; s < f->columns / 32 && k < k1; s++, k += 32) {
            MLXR_UNROLL for (int i = 0; i < f->step; i += 64) prefetch(ahead + i);
            ahead += f->step;
            MLXR_UNROLL_PARTS for (int p = 0; p < MLXR_PARTS; p++) {
                mlxr_weights w;
                f->read(&at, s, p, &w);
                MLXR_UNROLL for (int c = 0; c < 32; c += 2) {
                    f32v low = weight_of(f, &w, c), high = weight_of(f, &w, c + 1);
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

// A format NAME: its numbers, NAME_open and NAME_read, and what the program calls.
#define MLXR_PANEL_FORMAT(name, ...)                                                                                   \
    static const mlxr_format name##_format = {.open = name##_open, .read = name##_read, __VA_ARGS__};                  \
    MLXR_INLINE void name##_dot(const uint8_t *panel, int K, const mlxr_act *a, int m, float (*out)[16]) {             \
        panel_dot(&name##_format, panel, K, a, m, out);                                                                \
    }                                                                                                                  \
    MLXR_INLINE void name##_dot_exact(const uint8_t *panel, int K, const float *const *x,                              \
                                      const float *const *totals, int m, float (*out)[16]) {                           \
        panel_dot_exact(&name##_format, panel, K, x, totals, m, out);                                                  \
    }                                                                                                                  \
    MLXR_INLINE void name##_panel_f32(const uint8_t *panel, int K, int k0, int k1, float *dst) {                       \
        panel_widen(&name##_format, panel, K, k0, k1, 0, dst);                                                         \
    }                                                                                                                  \
    MLXR_INLINE void name##_panel_bf16(const uint8_t *panel, int K, int k0, int k1, uint16_t *dst) {                   \
        panel_widen(&name##_format, panel, K, k0, k1, 1, dst);                                                         \
    }
