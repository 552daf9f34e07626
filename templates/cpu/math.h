// exp, tanh and activations, on vectors of f32.

// e^x to about 1 ulp; infinity past f32's range, 0 below 2.4e-38 (never a subnormal number: those take an assist of
// hundreds of cycles). A NaN stays one.
// x = n log 2 + r, |r| <= log 2 / 2; e^r as a polynomial fitted for the least relative error.
MLXR_INLINE f32v f32_exp(f32v x) {
    const float least = -86.6f;
    f32v in = f32_min(f32_set1(89.0f), f32_max(f32_set1(least), x));
    f32v shifted = in * MLXR_LOG2_E + 12582912.0f;  // 1.5 * 2^23: n stands in the low bits
    f32v whole = shifted - 12582912.0f;
    f32v r = in - whole * 0.693145752f;
    r = r - whole * 1.42860677e-6f;
    f32v p = r * 1.37805939e-3f + 8.37312452e-3f;
    p = p * r + 4.16695364e-2f;
    p = p * r + 1.66664720e-1f;
    p = p * r + 4.99999851e-1f;
    p = p * (r * r) + r + 1.0f;
#if defined(MLXR_AVX512)
    __mmask16 there = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_NLT_UQ);
    return (f32v)_mm512_maskz_scalef_ps(there, (__m512)p, (__m512)whole);
#else
    // 2 p 2^(n - 1): n may be 128.
    i32v n = f32_bits(shifted) - 0x4b400000;
    f32v y = (p + p) * f32_of_bits((n + 126) << 23);
    return f32_of_bits(f32_bits(y) & ~(x < least));
#endif
}

// x / (1 + e^-x).
MLXR_INLINE f32v f32_silu(f32v x) { return x / (f32_exp(-x) + 1.0f); }

// x / 2 (1 + erf(x / sqrt 2)), to 3e-7, or 2 ulp where that is more.
// With z = |x| / sqrt 2 and t = 1 / (1 + 0.4 z): erfc(z) = t P(t) e^(-z^2), P fitted over z < 12 for the least relative
// error (8e-8). The form is that of Abramowitz and Stegun 7.1.26.
MLXR_INLINE f32v f32_gelu(f32v x) {
    f32v a = f32_min(f32_set1(16.0f), f32_abs(x));
    f32v t = 1.0f / (a * 0.282842712f + 1.0f);
    f32v p = t * 0.0441400135f - 0.154338467f;
    p = p * t + 0.112889468f;
    p = p * t + 0.0550204608f;
    p = p * t + 0.102393405f;
    p = p * t + 0.183822287f;
    p = p * t + 0.204311423f;
    p = p * t + 0.226107918f;
    p = p * t + 0.225653568f;
    f32v tail = p * t * f32_exp(a * a * -0.5f) * 0.5f;
    return f32_max(f32_zero(), x) - a * tail;
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), tanh through the sigmoid.
MLXR_INLINE f32v f32_gelu_tanh(f32v x) {
    f32v u = x * (x * x * 0.044715f + 1.0f) * -1.59576912f;
    return x / (f32_exp(u) + 1.0f);
}

// 1 / (1 + e^-x).
MLXR_INLINE f32v f32_sigmoid(f32v x) { return 1.0f / (f32_exp(-x) + 1.0f); }

// max(x, 0) and its square; a NaN stays one.
MLXR_INLINE f32v f32_relu(f32v x) { return f32_max(f32_zero(), x); }
MLXR_INLINE f32v f32_relu2(f32v x) { return f32_relu(x) * f32_relu(x); }

// tanh to 2 ulp: near 0 an odd polynomial, fitted for the least relative error, elsewhere through e^(2 x).
MLXR_INLINE f32v f32_tanh(f32v x) {
    f32v t = x * x;
    f32v p = t * -5.70499033e-3f + 2.06390906e-2f;
    p = p * t - 5.37397163e-2f;
    p = p * t + 1.33314422e-1f;
    p = p * t - 3.33332819e-1f;
    f32v far = 1.0f - 2.0f / (f32_exp(x + x) + 1.0f);
    return f32_select(f32_abs(x) < 0.625f, x * t * p + x, far);
}
