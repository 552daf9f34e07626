// Vectors of this machine's width, for GCC and clang.
//
// f32v, i32v, u32v hold MLXR_LANES (16, 8 or 4) numbers of 32 bits; + - * / & | ^ ~ << >> and comparisons (lanes of -1
// or 0, as i32v) are the compiler's own. Never use a vector wider than this: GCC keeps those in memory. Code that wants
// 16 lanes goes over MLXR_PARTS vectors. Loads and stores need no alignment. a * b + c becomes one FMA where there is
// one, but for sums over loops, which are an FMA only by f32_fma.
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define MLXR_AVX512 1
#define MLXR_LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MLXR_AVX2 1
#define MLXR_LANES 8
#else
#define MLXR_LANES 4
#if defined(__SSE4_1__)
#define MLXR_SSE4 1
#elif defined(__ARM_NEON) && defined(__aarch64__)
#define MLXR_NEON 1
#endif
#endif
#define MLXR_PARTS (16 / MLXR_LANES)

// Matrix tiles of bf16. The process must have asked the kernel for them; see pool.h.
#if defined(MLXR_AVX512) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define MLXR_AMX 1
#endif

// Asks for a loop of literal bounds to be unrolled whole.
#define MLXR_PRAGMA(text) _Pragma(#text)
#define MLXR_UNROLL MLXR_PRAGMA(GCC unroll 64)

// The four lanes of a and b that the numbers name, 0..3 of a and 4..7 of b. GCC before 12 knows this by another name.
#if defined(__clang__) || __GNUC__ >= 12
#define MLXR_FOUR_OF(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MLXR_FOUR_OF(a, b, ...) __builtin_shuffle(a, b, (i32v){__VA_ARGS__})
#endif

typedef float f32v __attribute__((vector_size(4 * MLXR_LANES)));
typedef int32_t i32v __attribute__((vector_size(4 * MLXR_LANES)));
typedef uint32_t u32v __attribute__((vector_size(4 * MLXR_LANES)));
typedef int8_t i8v __attribute__((vector_size(4 * MLXR_LANES)));  // 4 * MLXR_LANES bytes
typedef int16_t i16v __attribute__((vector_size(4 * MLXR_LANES)));  // 2 * MLXR_LANES of 16 bits
typedef uint8_t u8v __attribute__((vector_size(4 * MLXR_LANES)));
typedef uint16_t u16h __attribute__((vector_size(2 * MLXR_LANES)));  // MLXR_LANES of 16 bits
typedef f32v f32v_any __attribute__((aligned(1), may_alias));
typedef i32v i32v_any __attribute__((aligned(1), may_alias));
typedef i8v i8v_any __attribute__((aligned(1), may_alias));
typedef u16h u16h_any __attribute__((aligned(1), may_alias));
typedef int32_t i32_any __attribute__((aligned(1), may_alias));

MLXR_INLINE f32v f32_load(const float *p) { return *(const f32v_any *)p; }
MLXR_INLINE void f32_store(float *p, f32v v) { *(f32v_any *)p = v; }
MLXR_INLINE i32v i32_load(const void *p) { return *(const i32v_any *)p; }
MLXR_INLINE void i32_store(void *p, i32v v) { *(i32v_any *)p = v; }
MLXR_INLINE i8v i8_load(const void *p) { return *(const i8v_any *)p; }
MLXR_INLINE f32v f32_set1(float x) { return x - (f32v){0}; }  // (x - 0 keeps the sign of a zero)
MLXR_INLINE i32v i32_set1(int32_t x) { return x - (i32v){0}; }
MLXR_INLINE f32v f32_zero(void) { return (f32v){0}; }
MLXR_INLINE i32v i32_zero(void) { return (i32v){0}; }
// a * b + c, rounded once where this machine has FMA, in every copy of the code: GCC may leave a loop of few plain sums as
// products and sums (--param=avoid-fma-max-bits, set for many CPUs), and fuse those of the same loop with more sums.
#if defined(MLXR_AVX512)
MLXR_INLINE f32v f32_fma(f32v a, f32v b, f32v c) { return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(MLXR_AVX2)
MLXR_INLINE f32v f32_fma(f32v a, f32v b, f32v c) { return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__FMA__)
MLXR_INLINE f32v f32_fma(f32v a, f32v b, f32v c) { return (f32v)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c); }
#elif defined(MLXR_NEON)
MLXR_INLINE f32v f32_fma(f32v a, f32v b, f32v c) {
    return (f32v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
MLXR_INLINE f32v f32_fma(f32v a, f32v b, f32v c) { return a * b + c; }
#endif
// The same of single numbers.
#if defined(__FMA__) || defined(MLXR_NEON)
MLXR_INLINE float f32_fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
MLXR_INLINE float f32_fma_one(float a, float b, float c) { return a * b + c; }
#endif
MLXR_INLINE i32v f32_bits(f32v v) { return (i32v)v; }
MLXR_INLINE f32v f32_of_bits(i32v v) { return (f32v)v; }
MLXR_INLINE f32v f32_of_i32(i32v v) { return __builtin_convertvector(v, f32v); }
MLXR_INLINE f32v f32_abs(f32v v) { return (f32v)((i32v)v & 0x7fffffff); }
// v, rounded: the compiler cannot make an FMA of what v is and what is added to it.
MLXR_INLINE f32v f32_rounded(f32v v) {
#if defined(MLXR_AVX512)
    __asm__("" : "+v"(v));
#elif defined(__SSE__)
    __asm__("" : "+x"(v));
#elif defined(MLXR_NEON)
    __asm__("" : "+w"(v));
#else
    __asm__("" : "+m"(v));
#endif
    return v;
}
// Lanes of a where mask is -1, of b where it is 0.
MLXR_INLINE i32v i32_select(i32v mask, i32v a, i32v b) { return (mask & a) | (~mask & b); }
MLXR_INLINE f32v f32_select(i32v mask, f32v a, f32v b) { return (f32v)i32_select(mask, (i32v)a, (i32v)b); }

// max, min: the second operand where one is not a number.
#if defined(MLXR_AVX512)
MLXR_INLINE f32v f32_max(f32v a, f32v b) { return (f32v)_mm512_max_ps((__m512)a, (__m512)b); }
MLXR_INLINE f32v f32_min(f32v a, f32v b) { return (f32v)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(MLXR_AVX2)
MLXR_INLINE f32v f32_max(f32v a, f32v b) { return (f32v)_mm256_max_ps((__m256)a, (__m256)b); }
MLXR_INLINE f32v f32_min(f32v a, f32v b) { return (f32v)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(MLXR_SSE4)
MLXR_INLINE f32v f32_max(f32v a, f32v b) { return (f32v)_mm_max_ps((__m128)a, (__m128)b); }
MLXR_INLINE f32v f32_min(f32v a, f32v b) { return (f32v)_mm_min_ps((__m128)a, (__m128)b); }
#else
MLXR_INLINE f32v f32_max(f32v a, f32v b) { return f32_select(a > b, a, b); }
MLXR_INLINE f32v f32_min(f32v a, f32v b) { return f32_select(a < b, a, b); }
#endif

// The nearest integer, halves to even. |v| < 2^22 (as a float: no such bound).
MLXR_INLINE i32v i32_round(f32v v) {
#if defined(MLXR_AVX512)
    return (i32v)_mm512_cvtps_epi32((__m512)v);
#elif defined(MLXR_AVX2)
    return (i32v)_mm256_cvtps_epi32((__m256)v);
#elif defined(MLXR_SSE4)
    return (i32v)_mm_cvtps_epi32((__m128)v);
#elif defined(MLXR_NEON)
    return (i32v)vcvtnq_s32_f32((float32x4_t)v);
#else
    f32v shifted = v + 12582912.0f;  // 1.5 * 2^23: the integer stands in the low bits
    return (i32v)((u32v)shifted - 0x4b400000);
#endif
}

// Sum and greatest of the lanes.
MLXR_INLINE float f32_sum(f32v v) {
#if defined(MLXR_AVX512)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(MLXR_AVX2)
    __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

// Lane i is the sum of vector i's lanes.
MLXR_INLINE f32v f32_sums(const f32v *a) {
#if defined(MLXR_AVX512)
    __m512 pairs[8], quads[4];
    MLXR_UNROLL
    for (int i = 0; i < 8; i++) {
        __m512 x = (__m512)a[2 * i], y = (__m512)a[2 * i + 1];
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    MLXR_UNROLL
    for (int i = 0; i < 4; i++) {
        __m512d x = (__m512d)pairs[2 * i], y = (__m512d)pairs[2 * i + 1];
        quads[i] = _mm512_add_ps((__m512)_mm512_unpacklo_pd(x, y), (__m512)_mm512_unpackhi_pd(x, y));
    }
    MLXR_UNROLL
    for (int i = 0; i < 2; i++) {
        __m512 x = quads[2 * i], y = quads[2 * i + 1];
        quads[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    return (f32v)_mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88),
                               _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
#elif defined(MLXR_AVX2)
    __m256 halves[2];
    MLXR_UNROLL
    for (int i = 0; i < 2; i++)
        halves[i] = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a[4 * i], (__m256)a[4 * i + 1]),
                                   _mm256_hadd_ps((__m256)a[4 * i + 2], (__m256)a[4 * i + 3]));
    return (f32v)_mm256_add_ps(_mm256_permute2f128_ps(halves[0], halves[1], 0x20),
                               _mm256_permute2f128_ps(halves[0], halves[1], 0x31));
#else
    f32v x = MLXR_FOUR_OF(a[0], a[1], 0, 4, 1, 5) + MLXR_FOUR_OF(a[0], a[1], 2, 6, 3, 7);
    f32v y = MLXR_FOUR_OF(a[2], a[3], 0, 4, 1, 5) + MLXR_FOUR_OF(a[2], a[3], 2, 6, 3, 7);
    return MLXR_FOUR_OF(x, y, 0, 1, 4, 5) + MLXR_FOUR_OF(x, y, 2, 3, 6, 7);
#endif
}

MLXR_INLINE float f32_greatest(f32v v) {
#if defined(MLXR_AVX512)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float greatest = v[0];
    for (int i = 1; i < MLXR_LANES; i++) greatest = v[i] > greatest ? v[i] : greatest;
    return greatest;
#endif
}

MLXR_INLINE i32v i32_max(i32v a, i32v b) {
#if defined(MLXR_AVX512)
    return (i32v)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(MLXR_AVX2)
    return (i32v)_mm256_max_epi32((__m256i)a, (__m256i)b);
#elif defined(MLXR_SSE4)
    return (i32v)_mm_max_epi32((__m128i)a, (__m128i)b);
#else
    return i32_select(a > b, a, b);
#endif
}

MLXR_INLINE int32_t i32_sum(i32v v) {
#if defined(MLXR_AVX512)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = v[0];
    for (int i = 1; i < MLXR_LANES; i++) sum += v[i];
    return sum;
#endif
}

MLXR_INLINE int32_t i32_greatest(i32v v) {
#if defined(MLXR_AVX512)
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t greatest = v[0];
    for (int i = 1; i < MLXR_LANES; i++) greatest = v[i] > greatest ? v[i] : greatest;
    return greatest;
#endif
}

// --- 16-bit floats ---

// MLXR_LANES unsigned 16-bit or signed 8-bit numbers as 32-bit ones.
MLXR_INLINE u32v u32_load16(const void *p) {
#if defined(MLXR_AVX512)
    return (u32v)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
#elif defined(MLXR_AVX2)
    return (u32v)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(MLXR_SSE4)
    return (u32v)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    return __builtin_convertvector(*(const u16h_any *)p, u32v);
#endif
}

MLXR_INLINE i32v i32_load8(const int8_t *p) {
#if defined(MLXR_AVX512)
    return (i32v)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(MLXR_AVX2)
    return (i32v)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
#elif defined(MLXR_SSE4)
    return (i32v)_mm_cvtepi8_epi32(_mm_cvtsi32_si128(*(const i32_any *)p));
#else
    return (i32v){p[0], p[1], p[2], p[3]};
#endif
}

MLXR_INLINE u16h u16_of_u32(u32v v) { return __builtin_convertvector(v, u16h); }

// MLXR_LANES bf16 as f32.
MLXR_INLINE f32v bf16_load(const void *p) { return (f32v)(u32_load16(p) << 16); }

// The bf16 nearest to each lane, halves to even, in the lane's upper 16 bits; the lower ones are not meaningful.
MLXR_INLINE u32v bf16_round(f32v v) {
    u32v bits = (u32v)v, rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (u32v)i32_select((i32v)(v == v), (i32v)rounded, (i32v)(bits | 0x400000));  // a NaN stays one
}

// The same for finite numbers only.
MLXR_INLINE u32v bf16_round_finite(f32v v) {
    u32v bits = (u32v)v;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

// Writes MLXR_LANES bf16, rounded to nearest even.
MLXR_INLINE void bf16_store(void *p, f32v v) { *(u16h_any *)p = u16_of_u32(bf16_round(v) >> 16); }

// Pairs of bf16: lane i is (low[i], high[i]), low first in memory. Finite numbers; f32 subnormals may become zero.
MLXR_INLINE i32v bf16_pairs(f32v low, f32v high) {
#if defined(MLXR_AVX512) && defined(__AVX512BF16__)
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);  // low's 16, then high's
    const __m512i order = _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009,
                                           0x180008, 0x170007, 0x160006, 0x150005, 0x140004, 0x130003, 0x120002,
                                           0x110001, 0x100000);
    return (i32v)_mm512_permutexvar_epi16(order, both);
#else
    return (i32v)((bf16_round_finite(low) >> 16) | (bf16_round_finite(high) & 0xffff0000));
#endif
}

// f16 bits (one in each lane's lower half) to f32, exact, subnormals and infinities included.
MLXR_INLINE f32v f16_widen_soft(u32v h) {
    f32v scaled = (f32v)((h & 0x7fff) << 13) * 0x1p112f;  // exponents are off by 112
    u32v infinite = (u32v)((h & 0x7c00) == 0x7c00) & 0x7f800000;
    return (f32v)((u32v)scaled | infinite | ((h & 0x8000) << 16));
}

// f32 to f16 bits, nearest, halves to even.
MLXR_INLINE u32v f16_narrow_soft(f32v v) {
    u32v bits = (u32v)v, magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    u32v normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;  // exponent - 112, rounded at bit 13
    u32v small = (u32v)((f32v)magnitude + 0.5f) - 0x3f000000;                // 0.5's last bit is f16's smallest number
    u32v large = (u32v)i32_select((i32v)magnitude > 0x7f800000, i32_set1(0x7e00), i32_set1(0x7c00));
    i32v result = i32_select((i32v)magnitude < 0x38800000, (i32v)small, (i32v)normal);
    return (u32v)i32_select((i32v)magnitude >= 0x47800000, (i32v)large, result) | sign;
}

// MLXR_LANES f16 as f32.
MLXR_INLINE f32v f16_load(const void *p) {
#if defined(MLXR_AVX512)
    return (f32v)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(MLXR_AVX2)
    return (f32v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(MLXR_NEON)
    return (f32v)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p)));
#else
    return f16_widen_soft(u32_load16(p));
#endif
}

// Writes MLXR_LANES f16, rounded to nearest even.
MLXR_INLINE void f16_store(void *p, f32v v) {
#if defined(MLXR_AVX512)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(MLXR_AVX2)
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(MLXR_NEON)
    vst1_u16((uint16_t *)p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
    *(u16h_any *)p = u16_of_u32(f16_narrow_soft(v));
#endif
}

// Single numbers.
MLXR_INLINE float f32_of_one(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

MLXR_INLINE float bf16_to_f32(uint16_t bits) {
    return f32_of_one((int32_t)((uint32_t)bits << 16));
}

MLXR_INLINE uint16_t f32_to_bf16(float x) { return (uint16_t)(bf16_round(f32_set1(x))[0] >> 16); }

MLXR_INLINE float f16_to_f32(uint16_t bits) {
#if defined(MLXR_AVX512) || defined(MLXR_AVX2)
    return _cvtsh_ss(bits);
#else
    return f16_widen_soft((u32v){0} + bits)[0];
#endif
}

MLXR_INLINE uint16_t f32_to_f16(float x) {
#if defined(MLXR_AVX512) || defined(MLXR_AVX2)
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    return (uint16_t)f16_narrow_soft(f32_set1(x))[0];
#endif
}

// Brings the cache line at p closer; p may lie anywhere.
MLXR_INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
