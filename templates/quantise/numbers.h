// What quantisers of blocks share: halves, rounding, and how codes are packed. Every sum is in the order of its elements
// and no product is fused with an addition (-ffp-contract=off), so that all machines give the same bits.
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LEAST_MAXIMUM 1e-15f  // of a group whose numbers count as zeros

static inline float least(float x, float y) { return x < y ? x : y; }
static inline int bounded(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

// The nearest half, ties to even.
static uint16_t to_half(float x) {
    uint32_t bits, sign;
    memcpy(&bits, &x, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) {  // has no exponent: the addition rounds where the half's last bit is
        float small;
        memcpy(&small, &bits, 4);
        small += 0.5f;
        memcpy(&bits, &small, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xc8000fff + (bits >> 13 & 1);
    return (uint16_t)(sign | bits >> 13);
}

static float from_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 0) {
        const float small = (float)fraction * 0x1p-24f;
        return sign ? -small : small;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void put_half(uint8_t *to, float x) {
    const uint16_t half = to_half(x);
    memcpy(to, &half, 2);
}

static float get_half(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
    return from_half(half);
}

// The nearest integer, ties to even, of numbers below 2^22.
static inline int nearest(float x) {
    const float moved = x + 12582912.f;
    int bits;
    memcpy(&bits, &moved, 4);
    return (bits & 0x007fffff) - 0x00400000;
}

// 32 codes of 4 bits: byte j has those of elements j and j + 16.
static void pack_nibbles(const uint8_t *codes, uint8_t *to) {
    for (int j = 0; j < 16; ++j) to[j] = (uint8_t)((codes[j] & 15) | codes[j + 16] << 4);
}

// The fifth bits of 32 codes.
static void pack_fifth_bits(const uint8_t *codes, uint8_t *to) {
    uint32_t bits = 0;
    for (int j = 0; j < 32; ++j) bits |= (uint32_t)(codes[j] >> 4 & 1) << j;
    memcpy(to, &bits, 4);
}

// 256 codes of 2 bits: of each 128, byte j has those of elements j, j + 32, j + 64 and j + 96.
static void pack_pairs(const uint8_t *codes, uint8_t *to) {
    for (int part = 0; part < 256; part += 128)
        for (int j = 0; j < 32; ++j) {
            const uint8_t *c = codes + part + j;
            to[part / 4 + j] = (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
        }
}
