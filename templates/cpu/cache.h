// Rows of the KV cache: head_dim elements of one token and one KV head, as the arena holds them. In q8 int8 numbers and
// then their f32 scale, absmax / 127; a row that is not finite has the scale NaN. In q4 each 32 elements are mixed
// before; keys are then int8 numbers, and values numbers of 6 bits: first 16 bytes for each group (the upper 4 bits of
// number i in the low ones of byte i, those of number i + 16 in its high ones), then 8 bytes for each group (the lower
// two bits of numbers i, i + 8, i + 16, i + 24 in byte i); then bf16 scales of groups, then zeros up to 4 bytes. Four
// times a value's number fills a byte, and is multiplied by the scale. Rows need no alignment.
//
// In scratch a head is f32, `padded` elements long (head_dim rounded up to 16), so that vectors of any width fit.
#include <math.h>

#define MLXR_CACHE_F32 0
#define MLXR_CACHE_F16 1
#define MLXR_CACHE_BF16 2
#define MLXR_CACHE_Q8 3
#define MLXR_CACHE_Q4 4
#define MLXR_CACHE_Q4_KEYS 5

// Vectors of a head, the last one perhaps half full; then its other half is zeros in scratch.
#define MLXR_HEAD_VECTORS(head_dim) (((head_dim) + MLXR_LANES - 1) / MLXR_LANES)

typedef int8_t i8_quarter __attribute__((vector_size(MLXR_LANES), aligned(1), may_alias));
typedef float f32_any __attribute__((aligned(1), may_alias));

MLXR_INLINE int mlxr_least(int a, int b) { return a < b ? a : b; }

// Brings the cache line at p into the second level cache.
MLXR_INLINE void prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

MLXR_INLINE int cache_element_bytes(int type) {
    return type == MLXR_CACHE_F32 ? 4 : type >= MLXR_CACHE_Q8 ? 1 : 2;
}

// The type of keys where values have this one.
MLXR_INLINE int cache_key_type(int type) { return type == MLXR_CACHE_Q4 ? MLXR_CACHE_Q4_KEYS : type; }

// Four bytes at p in all lanes: as floats, since GCC would do with integers some of what follows before it copies them.
MLXR_INLINE i32v cache_copies(const uint8_t *p) {
#if defined(MLXR_AVX512)
    return (i32v)_mm512_set1_ps(*(const f32_any *)p);
#elif defined(MLXR_AVX2)
    return (i32v)_mm256_set1_ps(*(const f32_any *)p);
#else
    return i32_set1(*(const i32_any *)p);
#endif
}

// Four times MLXR_LANES numbers of a value of q4, from `at` on, of its group's `fours`, 16 bytes, and `twos`, 8 bytes:
// made many at a time, so that vectors of neighbouring elements share the work.
#if defined(MLXR_AVX512)
MLXR_INLINE f32v cache_sixes(const uint8_t *fours, const uint8_t *twos, int at) {
    uint64_t pairs;
    memcpy(&pairs, twos, 8);
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)fours));
    const __m256i four = _mm256_sllv_epi32(bytes, _mm256_set_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    const __m256i turns = _mm256_set_epi32(4, 4, 2, 2, 0, 0, 30, 30);
    const __m256i turned = _mm256_rorv_epi32(_mm256_set1_epi64x((int64_t)pairs), turns);
    const __m256i two = _mm256_and_si256(turned, _mm256_set1_epi8(0x0c));
    const __m256i numbers = _mm256_ternarylogic_epi32(_mm256_set1_epi8((char)0xf0), four, two, 0xca);
    const __m128i own = at % 32 < 16 ? _mm256_castsi256_si128(numbers) : _mm256_extracti128_si256(numbers, 1);
    return (f32v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(own));
}
#else
typedef uint32_t u32_four __attribute__((vector_size(16)));
MLXR_INLINE f32v cache_sixes(const uint8_t *fours, const uint8_t *twos, int at) {
    const int upper = at % 32 / 16;
    uint64_t pairs;
    memcpy(&pairs, twos, 8);
    const uint64_t copies[2] = {pairs, pairs};
    u32_four four, two;
    memcpy(&four, fours, 16);
    memcpy(&two, copies, 16);
    two = two >> (upper ? (u32_four){4, 4, 6, 6} : (u32_four){0, 0, 2, 2});
    four = upper ? four : four << 4;
    const u32_four numbers = (four & 0xf0f0f0f0) | (two & 0x03030303) << 2;
#if defined(MLXR_AVX2)
    const __m128i own = at % 16 ? _mm_unpackhi_epi64((__m128i)numbers, (__m128i)numbers) : (__m128i)numbers;
    return (f32v)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(own));
#else
    int8_t own[16];
    memcpy(own, &numbers, 16);
    return f32_of_i32(i32_load8(own + at % 16));
#endif
}
#endif

// MLXR_LANES elements of a row of q4, from `at` on, with their scale: of a key, or of a value.
MLXR_INLINE f32v cache_vector_q4(const uint8_t *row, int at, int type, int head_dim) {
    // The two bytes before a scale are in the row, too: so it is half of what is read, and needs no conversion.
    const uint8_t *const scales = row + (type == MLXR_CACHE_Q4 ? head_dim / 4 * 3 : head_dim) + at / 32 * 2;
    const f32v scale = f32_of_bits(cache_copies(scales - 2) & (int32_t)0xffff0000);
    if (type == MLXR_CACHE_Q4_KEYS) return f32_of_i32(i32_load8((const int8_t *)row + at)) * scale;
    return cache_sixes(row + at / 32 * 16, row + head_dim / 2 + at / 32 * 8, at) * scale;
}

// MLXR_LANES elements at p, without a scale.
MLXR_INLINE f32v cache_vector(const uint8_t *p, int type) {
    if (type == MLXR_CACHE_F32) return f32_load((const float *)p);
    if (type == MLXR_CACHE_F16) return f16_load(p);
#if defined(MLXR_AVX512)
    // GCC would widen each half on its own.
    if (type == MLXR_CACHE_BF16)
        return (f32v)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
    return (f32v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(MLXR_AVX2)
    if (type == MLXR_CACHE_BF16)
        return (f32v)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
    return (f32v)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    if (type == MLXR_CACHE_BF16) return bf16_load(p);
    return f32_of_i32(__builtin_convertvector(*(const i8_quarter *)p, i32v));
#endif
}

// Elements [at, at + MLXR_LANES) of a row; zeros past its end. at is a multiple of 8, and so is head_dim.
MLXR_INLINE f32v cache_vector_at(const uint8_t *row, int at, int type, int head_dim) {
    if (type >= MLXR_CACHE_Q4) return cache_vector_q4(row, at, type, head_dim);
    const uint8_t *p = row + at * cache_element_bytes(type);
    if (at + MLXR_LANES <= head_dim) return cache_vector(p, type);
#if defined(MLXR_AVX512)
    if (type == MLXR_CACHE_F32) return (f32v)_mm512_maskz_loadu_ps(0xff, p);
    if (type == MLXR_CACHE_Q8)
        return (f32v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    __m256i half = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)p));
    if (type == MLXR_CACHE_F16) return (f32v)_mm512_cvtph_ps(half);
    return (f32v)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#else
    return f32_zero();  // narrower vectors divide 8
#endif
}

// What a row's elements are to be multiplied by.
MLXR_INLINE float cache_scale(const uint8_t *row, int type, int head_dim) {
    return type == MLXR_CACHE_Q8 ? *(const f32_any *)(row + head_dim) : 1.0f;
}

// What is read next: bytes [begin, end) of K's and of V's rows of `count` tokens at `offsets`, and how far they have been
// brought into the second level cache, in the order of the arena's bytes.
typedef struct {
    const uint8_t *k, *v;
    const size_t *offsets;
    int begin, end, count, key, byte;
} cache_ahead;

// Brings the next `lines` cache lines of K, and of V, closer.
MLXR_INLINE void cache_prefetch(cache_ahead *ahead, int lines) {
    for (int i = 0; i < lines && ahead->key < ahead->count; i++) {
        const size_t at = ahead->offsets[ahead->key] + (size_t)ahead->byte;
        prefetch_l2(ahead->k + at);
        prefetch_l2(ahead->v + at);
        ahead->byte += 64;
        if (ahead->byte >= ahead->end) ahead->byte = ahead->begin, ahead->key++;
    }
}

// A row as f32 into scratch. type and head_dim are literals.
MLXR_INLINE void cache_load(float *dst, const uint8_t *row, int type, int head_dim) {
    const f32v scale = f32_set1(cache_scale(row, type, head_dim));
    MLXR_UNROLL
    for (int i = 0; i < MLXR_HEAD_VECTORS(head_dim); i++) {
        f32v x = cache_vector_at(row, i * MLXR_LANES, type, head_dim);
        f32_store(dst + i * MLXR_LANES, type == MLXR_CACHE_Q8 ? x * scale : x);
    }
}

MLXR_INLINE void cache_store_q8(uint8_t *row, const float *src, int head_dim) {
    f32v greatest = f32_zero(), other = f32_zero();
    for (int at = 0; at < head_dim; at += MLXR_LANES) {
        f32v x = cache_vector_at((const uint8_t *)src, at, MLXR_CACHE_F32, head_dim);
        greatest = f32_max(greatest, f32_abs(x));
        other += x * 0.0f;  // NaN where x is infinite or not a number
    }
    const float scale = f32_greatest(greatest) / 127.0f + f32_sum(other);
    const f32v divisor = f32_set1(scale > 0.0f ? scale : 1.0f), bound = f32_set1(scale > 0.0f ? 127.0f : 0.0f);
    for (int at = 0; at < head_dim; at += MLXR_LANES) {
        // Where the scale is subnormal it is coarse, and x / scale may exceed 127.
        f32v x = cache_vector_at((const uint8_t *)src, at, MLXR_CACHE_F32, head_dim) / divisor;
        i8_quarter numbers = __builtin_convertvector(i32_round(f32_max(-bound, f32_min(bound, x))), i8_quarter);
        memcpy(row + at, &numbers, (size_t)(head_dim - at < MLXR_LANES ? head_dim - at : MLXR_LANES));
    }
    *(f32_any *)(row + head_dim) = scale;
}

// Each 32 numbers times the Hadamard matrix of entries 1 and -1, and a factor. Its steps go from neighbours to halves, as
// on all hosts, so that all store the same bits.
MLXR_INLINE void cache_mix(float *x, int head_dim, float factor) {
    for (int at = 0; at < head_dim; at += 32, x += 32) {
        MLXR_UNROLL
        for (int step = 1; step < 32; step *= 2)
            for (int i = 0; i < 32; i += 2 * step)
                for (int j = i; j < i + step; j++) {
                    const float a = x[j], b = x[j + step];
                    x[j] = a + b;
                    x[j + step] = a - b;
                }
        for (int i = 0; i < 32; i++) x[i] *= factor;
    }
}

// The inverse of what is done to keys and values: for sums of values, and for queries to match keys.
MLXR_INLINE void cache_mix_back(float *x, int head_dim) { cache_mix(x, head_dim, 0.25f); }

// Keys, or values, of q4.
MLXR_INLINE void cache_store_q4(uint8_t *row, const float *src, int type, int head_dim) {
    const int of_keys = type == MLXR_CACHE_Q4_KEYS;
    uint8_t *const scales = row + (of_keys ? head_dim : head_dim / 4 * 3);
    for (int group = 0; group < head_dim / 32; group++) {
        float x[32], low = 0.0f, high = 0.0f, other = 0.0f;
        memcpy(x, src + 32 * group, sizeof x);
        cache_mix(x, 32, 0.125f);
        for (int i = 0; i < 32; i++) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
            other += x[i] * 0.0f;  // NaN where x is infinite or not a number
        }
        const float extreme = high > -low ? high : low;
        const float exact = of_keys ? __builtin_fabsf(extreme) / 127.0f : extreme * -0.0078125f;
        // A bf16, rounded to nearest. (A negative zero would be another row of zeros.)
        uint32_t bits;
        memcpy(&bits, &exact, 4);
        bits = other != 0.0f ? 0x7fc00000 : extreme != 0.0f ? (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000 : 0;
        const uint16_t stored = (uint16_t)(bits >> 16);
        float scale;
        memcpy(&scale, &bits, 4);
        const float step = of_keys ? scale : 4.0f * scale;
        const int usable = __builtin_fabsf(step) > 0.0f;
        const f32v divisor = f32_set1(usable ? step : 1.0f);
        const f32v least = f32_set1(!usable ? 0.0f : of_keys ? -127.0f : -32.0f);
        const f32v most = f32_set1(!usable ? 0.0f : of_keys ? 127.0f : 31.0f);
        int32_t numbers[32];
        for (int i = 0; i < 32; i += MLXR_LANES)
            i32_store(numbers + i, i32_round(f32_max(least, f32_min(most, f32_load(x + i) / divisor))));
        for (int i = 0; i < 32 && of_keys; i++) row[32 * group + i] = (uint8_t)numbers[i];
        for (int i = 0; i < 16 && !of_keys; i++)
            row[16 * group + i] = (uint8_t)((numbers[i] >> 2 & 15) | (numbers[i + 16] >> 2 & 15) << 4);
        for (int i = 0; i < 8 && !of_keys; i++) {
            int twos = 0;
            for (int j = 0; j < 4; j++) twos |= (numbers[i + 8 * j] & 3) << 2 * j;
            row[head_dim / 2 + 8 * group + i] = (uint8_t)twos;
        }
        memcpy(scales + 2 * group, &stored, 2);
    }
    if (head_dim / 32 % 2) memset(scales + head_dim / 16, 0, 2);
}

// A row of f32, in scratch or not, into the arena. type and head_dim are literals.
MLXR_INLINE void cache_store(uint8_t *row, const float *src, int type, int head_dim) {
    if (type == MLXR_CACHE_Q8) {
        cache_store_q8(row, src, head_dim);
        return;
    }
    if (type >= MLXR_CACHE_Q4) {
        cache_store_q4(row, src, type, head_dim);
        return;
    }
    const int size = cache_element_bytes(type);
    for (int at = 0; at < head_dim; at += MLXR_LANES) {
        const int count = head_dim - at < MLXR_LANES ? head_dim - at : MLXR_LANES;
        uint8_t part[4 * MLXR_LANES];
        float numbers[MLXR_LANES] = {0};
        memcpy(numbers, src + at, (size_t)count * 4);
        f32v x = f32_load(numbers);
        if (type == MLXR_CACHE_F32) f32_store((float *)part, x);
        if (type == MLXR_CACHE_F16) f16_store(part, x);
        if (type == MLXR_CACHE_BF16) bf16_store(part, x);
        memcpy(row + at * size, part, (size_t)(count * size));
    }
}

// Byte offsets of the rows of positions [first, first + count) of one sequence, from the layer's first row. Entries up
// to the next multiple of 32 repeat the last one, so that whole tiles may be read. table is NULL where a position's block
// is its own number.
MLXR_INLINE void cache_offsets(size_t *offsets, const int32_t *table, int first, int count, int block_size,
                               size_t block_stride, size_t token_bytes) {
    for (int i = 0; i < count;) {
        const int position = first + i, block = position / block_size, start = position % block_size;
        const int rest = block_size - start, run = rest < count - i ? rest : count - i;
        const size_t base = (size_t)(table ? table[block] : block) * block_stride + (size_t)start * token_bytes;
        for (int j = 0; j < run; j++) offsets[i + j] = base + (size_t)j * token_bytes;
        i += run;
    }
    for (int i = count; i % 32; i++) offsets[i] = offsets[count - 1];
}

// A head rotated and scaled into scratch. rotation: rotary_dim / 2 cosines, then as many sines. The dims are literals.
MLXR_INLINE void rope_head(float *restrict dst, const float *restrict head, const float *restrict rotation,
                           int head_dim, int rotary_dim, int interleaved, float scale) {
    const int pairs = rotary_dim / 2;
    const float *cosines = rotation, *sines = rotation + pairs;
    for (int i = 0; i < pairs; i++) {
        const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + pairs;
        const float a = head[first], b = head[second];
        dst[first] = (a * cosines[i] - b * sines[i]) * scale;
        dst[second] = (b * cosines[i] + a * sines[i]) * scale;
    }
    for (int i = rotary_dim; i < head_dim; i++) dst[i] = head[i] * scale;
    for (int i = head_dim; i < (head_dim + 15) / 16 * 16; i++) dst[i] = 0.0f;
}

// What the queries of a position are multiplied by where they grow with it.
MLXR_INLINE float rope_temperature(int position, float beta, int original_context) {
    return 1.0f + beta * logf((float)(1 + position / original_context));
}
