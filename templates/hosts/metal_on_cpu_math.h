/* Metal on a CPU: conversions, limits and math. Follows metal_on_cpu.h. */
namespace metal {
template <typename D, typename S>
MLXR_INLINE D as_type(S x) {
    static_assert(sizeof(D) == sizeof(S), "as_type between types of different sizes");
    return __builtin_bit_cast(D, x);
}

template <typename T>
struct numeric_limits;
#define MLXR_LIMITS(T, lowest_, max_)                           \
    template <>                                                 \
    struct numeric_limits<T> {                                  \
        static constexpr T lowest() { return lowest_; }         \
        static constexpr T max() { return max_; }               \
    };
MLXR_LIMITS(int8_t, -128, 127)
MLXR_LIMITS(uint8_t, 0, 255)
MLXR_LIMITS(int16_t, -32768, 32767)
MLXR_LIMITS(uint16_t, 0, 65535)
MLXR_LIMITS(int32_t, INT_MIN, INT_MAX)
MLXR_LIMITS(uint32_t, 0, UINT_MAX)
MLXR_LIMITS(int64_t, -0x7fffffffffffffff - 1, 0x7fffffffffffffff)
MLXR_LIMITS(uint64_t, 0, 0xffffffffffffffff)
#undef MLXR_LIMITS
#define MLXR_FLOAT_LIMITS(T, max_, min_, epsilon_)                                       \
    template <>                                                                         \
    struct numeric_limits<T> {                                                          \
        static constexpr T max() { return (T)max_; }                                    \
        static constexpr T lowest() { return (T)-max_; }                                \
        static constexpr T min() { return (T)min_; }                                    \
        static constexpr T epsilon() { return (T)epsilon_; }                            \
        static constexpr T infinity() { return (T)__builtin_inff(); }                   \
        static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }                \
    };
MLXR_FLOAT_LIMITS(float, 0x1.fffffep+127f, 0x1p-126f, 0x1p-23f)
MLXR_FLOAT_LIMITS(float16_t, 65504.0f, 0x1p-14f, 0x1p-10f)
MLXR_FLOAT_LIMITS(bfloat, 0x1.fep+127f, 0x1p-126f, 0x1p-7f)
#undef MLXR_FLOAT_LIMITS

/* ---- math: overloads for float, half and bfloat (both computed in float), and lane by lane for vectors ---- */
#define MLXR_LANEWISE1(name)                                            \
    template <typename T, int N>                                        \
    MLXR_INLINE vec<T, N> name(vec<T, N> x) {                           \
        vec<T, N> y;                                                    \
        for (int i = 0; i < N; i++) y[i] = name((T)x[i]);               \
        return y;                                                       \
    }
#define MLXR_LANEWISE2(name)                                            \
    template <typename T, int N>                                        \
    MLXR_INLINE vec<T, N> name(vec<T, N> x, vec<T, N> y) {              \
        vec<T, N> z;                                                    \
        for (int i = 0; i < N; i++) z[i] = name((T)x[i], (T)y[i]);      \
        return z;                                                       \
    }
#define MLXR_MATH1(name, function)                                                              \
    MLXR_INLINE float name(float x) { return function(x); }                                     \
    MLXR_INLINE float16_t name(float16_t x) { return (float16_t)function((float)x); }           \
    MLXR_INLINE bfloat name(bfloat x) { return (bfloat)function((float)x); }                    \
    MLXR_LANEWISE1(name)
#define MLXR_MATH2(name, function)                                                              \
    MLXR_INLINE float name(float x, float y) { return function(x, y); }                         \
    MLXR_INLINE float16_t name(float16_t x, float16_t y) { return (float16_t)function((float)x, (float)y); } \
    MLXR_INLINE bfloat name(bfloat x, bfloat y) { return (bfloat)function((float)x, (float)y); } \
    MLXR_LANEWISE2(name)
MLXR_MATH1(exp, __builtin_expf)
MLXR_MATH1(exp2, __builtin_exp2f)
MLXR_MATH1(log, __builtin_logf)
MLXR_MATH1(log2, __builtin_log2f)
MLXR_MATH1(log10, __builtin_log10f)
MLXR_MATH1(sin, __builtin_sinf)
MLXR_MATH1(cos, __builtin_cosf)
MLXR_MATH1(tan, __builtin_tanf)
MLXR_MATH1(asin, __builtin_asinf)
MLXR_MATH1(acos, __builtin_acosf)
MLXR_MATH1(atan, __builtin_atanf)
MLXR_MATH1(sinh, __builtin_sinhf)
MLXR_MATH1(cosh, __builtin_coshf)
MLXR_MATH1(tanh, __builtin_tanhf)
MLXR_MATH1(asinh, __builtin_asinhf)
MLXR_MATH1(acosh, __builtin_acoshf)
MLXR_MATH1(atanh, __builtin_atanhf)
MLXR_MATH1(sqrt, __builtin_sqrtf)
MLXR_MATH1(floor, __builtin_floorf)
MLXR_MATH1(ceil, __builtin_ceilf)
MLXR_MATH1(trunc, __builtin_truncf)
MLXR_MATH1(round, __builtin_roundf)
MLXR_MATH1(rint, __builtin_rintf)
MLXR_MATH1(fabs, __builtin_fabsf)
MLXR_MATH2(pow, __builtin_powf)
MLXR_MATH2(powr, __builtin_powf)
MLXR_MATH2(fmod, __builtin_fmodf)
MLXR_MATH2(atan2, __builtin_atan2f)
MLXR_MATH2(copysign, __builtin_copysignf)
#define MLXR_RSQRT(x) (1.0f / __builtin_sqrtf(x))
MLXR_MATH1(rsqrt, MLXR_RSQRT)
#undef MLXR_RSQRT
#define MLXR_FRACT(x) __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f)
MLXR_MATH1(fract, MLXR_FRACT)
#undef MLXR_FRACT
#define MLXR_SIGN(x) ((x) > 0.0f ? 1.0f : (x) < 0.0f ? -1.0f : 0.0f)
MLXR_MATH1(sign, MLXR_SIGN)
#undef MLXR_SIGN
#define MLXR_SATURATE(x) __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f)
MLXR_MATH1(saturate, MLXR_SATURATE)
#undef MLXR_SATURATE
#undef MLXR_MATH1

/* max, min, abs, clamp: integers too. */
#define MLXR_INTEGERS(M) M(char) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)
#define MLXR_MAX_MIN(T)                                                     \
    MLXR_INLINE T max(T x, T y) { return x > y ? x : y; }                   \
    MLXR_INLINE T min(T x, T y) { return x < y ? x : y; }                   \
    MLXR_INLINE T abs(T x) { return x < (T)0 ? (T)-x : x; }                 \
    MLXR_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
MLXR_INTEGERS(MLXR_MAX_MIN)
#undef MLXR_MAX_MIN
#define MLXR_MAX_MIN(T)                                                                      \
    MLXR_INLINE T max(T x, T y) { return (T)__builtin_fmaxf((float)x, (float)y); }           \
    MLXR_INLINE T min(T x, T y) { return (T)__builtin_fminf((float)x, (float)y); }           \
    MLXR_INLINE T fmax(T x, T y) { return max(x, y); }                                       \
    MLXR_INLINE T fmin(T x, T y) { return min(x, y); }                                       \
    MLXR_INLINE T abs(T x) { return (T)__builtin_fabsf((float)x); }                          \
    MLXR_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }               \
    MLXR_INLINE T fma(T x, T y, T z) { return (T)__builtin_fmaf((float)x, (float)y, (float)z); } \
    MLXR_INLINE T mix(T x, T y, T a) { return x + (y - x) * a; }                             \
    MLXR_INLINE T step(T edge, T x) { return x < edge ? (T)0 : (T)1; }                       \
    MLXR_INLINE bool isnan(T x) { return __builtin_isnan((float)x); }                        \
    MLXR_INLINE bool isinf(T x) { return __builtin_isinf((float)x); }                        \
    MLXR_INLINE bool isfinite(T x) { return __builtin_isfinite((float)x); }                  \
    MLXR_INLINE bool signbit(T x) { return __builtin_signbit((float)x); }
MLXR_MAX_MIN(float)
MLXR_MAX_MIN(float16_t)
MLXR_MAX_MIN(bfloat)
#undef MLXR_MAX_MIN
MLXR_LANEWISE1(abs)
MLXR_LANEWISE2(max)
MLXR_LANEWISE2(min)
MLXR_LANEWISE2(fmax)
MLXR_LANEWISE2(fmin)
MLXR_LANEWISE2(step)
template <typename T, int N>
MLXR_INLINE vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
    return min(max(x, low), high);
}
template <typename T, int N>
MLXR_INLINE vec<T, N> fma(vec<T, N> x, vec<T, N> y, vec<T, N> z) {
    for (int i = 0; i < N; i++) z[i] = fma((T)x[i], (T)y[i], (T)z[i]);
    return z;
}
template <typename T, int N>
MLXR_INLINE vec<T, N> mix(vec<T, N> x, vec<T, N> y, vec<T, N> a) {
    return x + (y - x) * a;
}
#undef MLXR_LANEWISE1
#undef MLXR_LANEWISE2
#undef MLXR_MATH2

template <typename T>
MLXR_INLINE T select(T a, T b, bool condition) {
    return condition ? b : a;
}
/* Comparisons of vectors give vectors of integers, all bits set where true. */
template <typename T, typename C, int N>
MLXR_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<C, N> condition) {
    for (int i = 0; i < N; i++) a[i] = condition[i] ? b[i] : a[i];
    return a;
}
template <typename T, int N>
MLXR_INLINE bool all(vec<T, N> x) {
    bool result = true;
    for (int i = 0; i < N; i++) result = result && x[i] != 0;
    return result;
}
template <typename T, int N>
MLXR_INLINE bool any(vec<T, N> x) {
    bool result = false;
    for (int i = 0; i < N; i++) result = result || x[i] != 0;
    return result;
}
template <typename T, int N>
MLXR_INLINE T dot(vec<T, N> x, vec<T, N> y) {
    T sum = x[0] * y[0];
    for (int i = 1; i < N; i++) sum += x[i] * y[i];
    return sum;
}
template <typename T, int N>
MLXR_INLINE T length_squared(vec<T, N> x) {
    return dot(x, x);
}
template <typename T, int N>
MLXR_INLINE T length(vec<T, N> x) {
    return sqrt(dot(x, x));
}

MLXR_INLINE int popcount(int x) { return __builtin_popcount((uint)x); }
MLXR_INLINE uint popcount(uint x) { return (uint)__builtin_popcount(x); }
MLXR_INLINE int clz(int x) { return x == 0 ? 32 : __builtin_clz((uint)x); }
MLXR_INLINE uint clz(uint x) { return x == 0 ? 32u : (uint)__builtin_clz(x); }
MLXR_INLINE int ctz(int x) { return x == 0 ? 32 : __builtin_ctz((uint)x); }
MLXR_INLINE uint ctz(uint x) { return x == 0 ? 32u : (uint)__builtin_ctz(x); }
MLXR_INLINE int mulhi(int x, int y) { return (int)(((int64_t)x * y) >> 32); }
MLXR_INLINE uint mulhi(uint x, uint y) { return (uint)(((uint64_t)x * y) >> 32); }
MLXR_INLINE uint rotate(uint x, uint n) { return x << (n & 31) | x >> (-n & 31); }
MLXR_INLINE uint extract_bits(uint x, uint offset, uint bits) {
    return bits == 0 ? 0 : (x >> offset) & (0xffffffffu >> (32 - bits));
}

#define MLXR_MATH_NAMES                                                                                          \
    using metal::exp; using metal::exp2; using metal::log; using metal::log2; using metal::log10;                \
    using metal::sin; using metal::cos; using metal::tan; using metal::asin; using metal::acos;                  \
    using metal::atan; using metal::sinh; using metal::cosh; using metal::tanh; using metal::asinh;              \
    using metal::acosh; using metal::atanh; using metal::sqrt; using metal::rsqrt; using metal::floor;           \
    using metal::ceil; using metal::trunc; using metal::round; using metal::rint; using metal::fabs;             \
    using metal::abs; using metal::pow; using metal::powr; using metal::fmod; using metal::atan2;                \
    using metal::copysign; using metal::fract; using metal::sign; using metal::saturate; using metal::max;       \
    using metal::min; using metal::fmax; using metal::fmin; using metal::clamp; using metal::fma;                \
    using metal::mix; using metal::step; using metal::isnan; using metal::isinf; using metal::isfinite;
namespace precise {
MLXR_MATH_NAMES
}
namespace fast {
MLXR_MATH_NAMES
inline float divide(float x, float y) { return x / y; }
}
#undef MLXR_MATH_NAMES
}  // namespace metal
