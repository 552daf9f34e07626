// Dot products of four 8-bit weights with four 8-bit activations in every 32-bit lane.
//
// Activations are -127..127. Unsigned weights have at most 6 bits. Signed weights are -128..127; where the instruction
// wants unsigned ones, MLXR_SIGNED_BY_128 is 1 and signed_weights() adds 128, which the caller takes off through what
// the sums start from. x86 without VNNI adds products in pairs, to 16 bits (MLXR_WORDS); those of small weights are
// added up as such.
#if defined(MLXR_AVX512) && defined(__AVX512VNNI__)
#define MLXR_DPBUSD(acc, w, x) (i32v) _mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x))
#elif defined(MLXR_AVX2) && defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define MLXR_DPBUSD(acc, w, x) (i32v) _mm256_dpbusd_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(x))
#elif defined(MLXR_AVX2) && defined(__AVXVNNI__)
#define MLXR_DPBUSD(acc, w, x) (i32v) _mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(x))
#endif

#if defined(MLXR_DPBUSD)
#define MLXR_SIGNED_BY_128 1
#define MLXR_WORDS 0
#else
#define MLXR_SIGNED_BY_128 0
#define MLXR_WORDS (MLXR_AVX512 + MLXR_AVX2 + MLXR_SSE4)
#endif

// Four activations in every lane.
MLXR_INLINE i8v broadcast4(const int8_t *x) { return (i8v)i32_set1(*(const i32_any *)x); }

#if defined(MLXR_NEON) && !defined(__ARM_FEATURE_DOTPROD)
MLXR_INLINE int32x4_t neon_dot(int32x4_t acc, int8x16_t w, int8x16_t x) {
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    return vaddq_s32(acc, vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(w, x))));
}
#elif defined(MLXR_NEON)
MLXR_INLINE int32x4_t neon_dot(int32x4_t acc, int8x16_t w, int8x16_t x) { return vdotq_s32(acc, w, x); }
#endif

// How many sums of two products of weights of so many bits fit 16 bits: 2 * 127 * 15 * 8 = 30480, and so on.
MLXR_INLINE int words_that_add(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }

#if MLXR_WORDS
// Sums of two products, 16 bits each.
MLXR_INLINE i16v dot_words(i8v w, i8v x) {
#if defined(MLXR_AVX512)
    return (i16v)_mm512_maddubs_epi16((__m512i)w, (__m512i)x);
#elif defined(MLXR_AVX2)
    return (i16v)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
#else
    return (i16v)_mm_maddubs_epi16((__m128i)w, (__m128i)x);
#endif
}

// acc + the sums of their neighbours.
MLXR_INLINE i32v add_words(i32v acc, i16v words) {
#if defined(MLXR_AVX512)
    return acc + (i32v)_mm512_madd_epi16((__m512i)words, _mm512_set1_epi16(1));
#elif defined(MLXR_AVX2)
    return acc + (i32v)_mm256_madd_epi16((__m256i)words, _mm256_set1_epi16(1));
#else
    return acc + (i32v)_mm_madd_epi16((__m128i)words, _mm_set1_epi16(1));
#endif
}

// A weight's sign goes to the activation: |w| * |x| <= 128 * 127, of which two still fit 16 bits.
MLXR_INLINE i16v dot_words_signed(i8v w, i8v x) {
#if defined(MLXR_AVX512)
    __mmask64 negative = _mm512_movepi8_mask((__m512i)w);
    __m512i signs = _mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
    return dot_words((i8v)_mm512_abs_epi8((__m512i)w), (i8v)signs);
#elif defined(MLXR_AVX2)
    return dot_words((i8v)_mm256_abs_epi8((__m256i)w), (i8v)_mm256_sign_epi8((__m256i)x, (__m256i)w));
#else
    return dot_words((i8v)_mm_abs_epi8((__m128i)w), (i8v)_mm_sign_epi8((__m128i)x, (__m128i)w));
#endif
}
#else
// acc + dot; w unsigned, or from signed_weights().
MLXR_INLINE i32v dot_bytes(i32v acc, i8v w, i8v x) {
#if defined(MLXR_DPBUSD)
    return MLXR_DPBUSD(acc, w, x);
#elif defined(MLXR_NEON)
    return (i32v)neon_dot((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x);
#else
    for (int i = 0; i < 4 * MLXR_LANES; i++) acc[i / 4] += w[i] * x[i];
    return acc;
#endif
}
#endif

// The table's number at every index of 0..15.
MLXR_INLINE i8v look_up(const int8_t table[16], i8v index) {
#if defined(MLXR_AVX512)
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return (i8v)_mm512_shuffle_epi8(all, (__m512i)index);
#elif defined(MLXR_AVX2)
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (i8v)_mm256_shuffle_epi8(both, (__m256i)index);
#elif defined(MLXR_SSE4)
    return (i8v)_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)table), (__m128i)index);
#elif defined(MLXR_NEON)
    return (i8v)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)index);
#else
    i8v found;
    for (int i = 0; i < 4 * MLXR_LANES; i++) found[i] = table[index[i] & 15];
    return found;
#endif
}

// Signed weights as dot_bytes wants them.
MLXR_INLINE i8v signed_weights(i8v w) { return MLXR_SIGNED_BY_128 ? w ^ (int8_t)-128 : w; }

#if !MLXR_WORDS
// The same as dot_groups for pairs of activation rows, where one instruction multiplies two of them with two rows of
// weights; returns how many rows that were.
MLXR_INLINE int dot_two_rows(const i8v w[8], int apart, const int8_t *const x[8], int m, i32v sums[8][2]) {
#if defined(MLXR_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
    int32x4_t weights[8];  // of 8 columns in [2 g] rows 0 and 1, in [2 g + 1] rows 2 and 3
    MLXR_UNROLL for (int g = 0; g < 8; g += 2) {
        weights[g] = vzip1q_s32((int32x4_t)w[g], (int32x4_t)w[g + 1]);
        weights[g + 1] = vzip2q_s32((int32x4_t)w[g], (int32x4_t)w[g + 1]);
    }
    const int halves = apart ? 2 : 1;  // (GCC unrolls no loop whose condition has another one)
    MLXR_UNROLL for (int i = 0; i + 1 < m; i += 2) {
        MLXR_UNROLL for (int half = 0; half < halves; half++) {
            const int from = apart ? 4 * half : 0, to = apart ? from + 4 : 8;
            const int32x4_t one = (int32x4_t)sums[i][half], two = (int32x4_t)sums[i + 1][half];
            int32x4_t low = vzip1q_s32(one, two), high = vzip2q_s32(one, two);
            MLXR_UNROLL for (int g = from; g < to; g += 2) {
                int8x16_t both = vcombine_s8(vld1_s8(x[i] + 4 * g), vld1_s8(x[i + 1] + 4 * g));
                low = vmmlaq_s32(low, (int8x16_t)weights[g], both);
                high = vmmlaq_s32(high, (int8x16_t)weights[g + 1], both);
            }
            sums[i][half] = (i32v)vuzp1q_s32(low, high);
            sums[i + 1][half] = (i32v)vuzp2q_s32(low, high);
        }
    }
    return m & ~1;
#else
    return 0;
#endif
}
#endif

// 32 columns times those of m rows of activations, the weights in 8 groups of so many bits (8: signed), added to
// sums[i][0], or to sums[i][g / 4] if the halves are apart.
MLXR_INLINE void dot_groups(const i8v w[8], int bits, int apart, const int8_t *const x[8], int m, i32v sums[8][2]) {
#if MLXR_WORDS
    // By row: its words add up in one register.
    const int together = apart && bits < 5 ? 4 : words_that_add(bits);
    MLXR_UNROLL for (int i = 0; i < m; i++) {
        i16v words;
        MLXR_UNROLL for (int g = 0; g < 8; g++) {
            i8v four = broadcast4(x[i] + 4 * g);
            i16v two = bits == 8 ? dot_words_signed(w[g], four) : dot_words(w[g], four);
            words = g % together ? words + two : two;
            i32v *sum = &sums[i][apart ? g / 4 : 0];
            if (g % together == together - 1) *sum = add_words(*sum, words);
        }
    }
#else
    const int first = dot_two_rows(w, apart, x, m, sums);
    // By group: neighbouring instructions do not wait for each other.
    MLXR_UNROLL for (int j = 0; j < 8; j++) {
        int g = j / 2 + 4 * (j % 2);  // as nibbles are unpacked
        i8v weights = bits == 8 ? signed_weights(w[g]) : w[g];
        MLXR_UNROLL for (int i = first; i < m; i++) {
            i32v *sum = &sums[i][apart ? g / 4 : 0];
            *sum = dot_bytes(*sum, weights, broadcast4(x[i] + 4 * g));
        }
    }
#endif
}
