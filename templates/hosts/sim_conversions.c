/* Conversions that clang calls where the processor has no instruction: to the nearest, ties to even; NaN stays NaN.
 *
 * Linked into every kernel library of the sim host.
 */
#include <stdint.h>

#define EXPORT __attribute__((visibility("hidden")))

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

EXPORT __bf16 __truncsfbf2(float x) {
    uint32_t bits = bits_of(x);
    uint16_t upper = (bits & 0x7fffffffu) > 0x7f800000u ? (uint16_t)(bits >> 16 | 0x40u)
                                                        : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    __bf16 result;
    __builtin_memcpy(&result, &upper, 2);
    return result;
}

EXPORT float __extendhfsf2(_Float16 x) {
    uint16_t half;
    __builtin_memcpy(&half, &x, 2);
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 1023u, bits;
    float result;
    if (exponent == 0) {
        result = (float)fraction * 0x1p-24f;
        bits = bits_of(result) | sign;
    } else {
        bits = sign | (exponent == 31 ? 0xffu : exponent + 112u) << 23 | fraction << 13;
    }
    __builtin_memcpy(&result, &bits, 4);
    return result;
}

EXPORT _Float16 __truncsfhf2(float x) {
    uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    uint16_t half;
    if (magnitude > 0x7f800000u) {
        half = (uint16_t)(0x7e00u | (magnitude >> 13 & 0x3ffu));
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
        uint32_t rebased = magnitude - 0x38000000u;
        half = (uint16_t)((rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
    } else {
        /* Subnormal: adding 0.5 leaves the rounded fraction in the low bits. */
        float value;
        __builtin_memcpy(&value, &magnitude, 4);
        half = (uint16_t)(bits_of(value + 0.5f) - 0x3f000000u);
    }
    half |= (uint16_t)(bits >> 16 & 0x8000u);
    _Float16 result;
    __builtin_memcpy(&result, &half, 2);
    return result;
}
