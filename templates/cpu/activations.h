// A row of activations as 8-bit integers, for the integer dot products of quantised weights.
//
// Every 32 columns are one cache line: the integers, their scale (greatest magnitude / 127), and the numbers from which
// the dot products of each format start: weights stored as w + b make a product too great by b * sum(q).
typedef struct {
    int8_t q[32];         // round(x / d), halves to even: -127..127
    float d;              // x is about q * d
    float sum;            // d * sum(q)
    int32_t start8;       // -8 * sum(q)
    int32_t start128;     // -128 * sum(q)
    int32_t start32[2];   // -32 * sum(q) of the first and of the last 16 columns
    float sums[2];        // d * sum(q), likewise
} mlxr_act_block;

typedef struct {
    const mlxr_act_block *blocks;
} mlxr_act;

// Bytes of a row of K columns, K a multiple of 32: an odd number of cache lines, so that the same columns of several
// rows do not fight for the same places of a cache.
#define mlxr_act_bytes(K) (((size_t)(K) / 32 | 1) * sizeof(mlxr_act_block))

MLXR_INLINE mlxr_act mlxr_act_at(const uint8_t *base, int K) {
    (void)K;
    return (mlxr_act){(const mlxr_act_block *)base};
}

// The parts' vectors as 16 bytes; every number is within -128..127.
MLXR_INLINE void mlxr_narrow16(int8_t *dst, const i32v v[MLXR_PARTS]) {
#if defined(MLXR_AVX512)
    _mm_storeu_si128((__m128i *)dst, _mm512_cvtepi32_epi8((__m512i)v[0]));
#elif defined(MLXR_AVX2)
    __m256i words = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i *)dst, _mm_packs_epi16(low, high));
#elif defined(MLXR_SSE4)
    __m128i low = _mm_packs_epi32((__m128i)v[0], (__m128i)v[1]), high = _mm_packs_epi32((__m128i)v[2], (__m128i)v[3]);
    _mm_storeu_si128((__m128i *)dst, _mm_packs_epi16(low, high));
#elif defined(MLXR_NEON)
    int16x8_t low = vcombine_s16(vmovn_s32((int32x4_t)v[0]), vmovn_s32((int32x4_t)v[1]));
    int16x8_t high = vcombine_s16(vmovn_s32((int32x4_t)v[2]), vmovn_s32((int32x4_t)v[3]));
    vst1q_s8(dst, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
#else
    for (int i = 0; i < 16; i++) dst[i] = (int8_t)v[i / MLXR_LANES][i % MLXR_LANES];
#endif
}

// Quantises a row of K columns. dst: mlxr_act_bytes(K), 64-byte aligned. A block with a NaN or an infinity gets that as
// its scale, so that products are NaN; a block whose magnitudes are below 1e-35 becomes zero.
MLXR_INLINE void mlxr_quantise(const float *x, int K, uint8_t *dst) {
    mlxr_act_block *blocks = (mlxr_act_block *)dst;
    for (int b = 0; b < K / 32; b++, x += 32) {
        // Magnitudes order like their bits, and a NaN's are the greatest.
        i32v greatest = f32_bits(f32_abs(f32_load(x)));
        MLXR_UNROLL for (int i = MLXR_LANES; i < 32; i += MLXR_LANES) {
            greatest = i32_max(greatest, f32_bits(f32_abs(f32_load(x + i))));
        }
        int32_t bits = i32_greatest(greatest), keep = bits < 0x7f800000 ? -1 : 0;
        float magnitude = f32_of_one(bits);
        float inverse = magnitude > 1e-35f ? 127.0f / magnitude : 0.0f;
        int32_t sums[2];
        MLXR_UNROLL for (int half = 0; half < 2; half++) {
            i32v q[MLXR_PARTS], sum = i32_zero();
            MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
                q[p] = i32_round(f32_load(x + 16 * half + p * MLXR_LANES) * inverse) & keep;
                sum += q[p];
            }
            mlxr_narrow16(blocks[b].q + 16 * half, q);
            sums[half] = i32_sum(sum);
        }
        float d = magnitude / 127.0f;
        blocks[b].d = d;
        blocks[b].sum = d * (float)(sums[0] + sums[1]);
        blocks[b].start8 = -8 * (sums[0] + sums[1]);
        blocks[b].start128 = -128 * (sums[0] + sums[1]);
        blocks[b].start32[0] = -32 * sums[0];
        blocks[b].start32[1] = -32 * sums[1];
        blocks[b].sums[0] = d * (float)sums[0];
        blocks[b].sums[1] = d * (float)sums[1];
    }
}
