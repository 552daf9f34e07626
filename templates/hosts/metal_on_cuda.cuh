/* Metal on CUDA: what a kernel's header and body find above themselves when host cuda compiles them (NVRTC).
 *
 * The subset of Metal that MLXR's kernels use. Address spaces mean nothing here: CUDA's pointers are generic, and the
 * sim host has checked them. A simdgroup is a warp; all 32 lanes take part in every simdgroup operation. Vector types
 * are classes of our own, because CUDA's have no operators; macros give them Metal's names from here on.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

#define device
#define thread
#define threadgroup
// Lanes read tables at different places, and constant memory serves one place at a time.
#define constant static __device__ const
#define MLXR_SUM(x, y) mlxr::sum(x, y)
// NVRTC makes two stores of 8 bytes of the plain C++ assignment.
#define MLXR_STORE_UINT4(p, v) mlxr::store16(p, v)

#define thread_index_in_simdgroup (threadIdx.x & 31u)
#ifndef MLXR_THREADGROUP  // a block is a threadgroup; the step kernel's blocks run several (see step_on_cuda.cuh.jinja)
#ifdef MLXR_POOL_BYTES  // more than a block has unless its launch asks for it
#define MLXR_THREADGROUP(T, name, count)             \
    T* const name = (T*)(mlxr_pool + mlxr_pool_at);  \
    mlxr_pool_at += (sizeof(T) * (count) + 15u) & ~15u
#ifndef MLXR_POOL_ALIGNMENT
#define MLXR_POOL_ALIGNMENT 16
#endif
extern __shared__ __align__(MLXR_POOL_ALIGNMENT) unsigned char mlxr_pool[];
#else
#define MLXR_THREADGROUP(T, name, count) __shared__ T name[count]
#endif
#define thread_index_in_threadgroup (threadIdx.x)
#define simdgroup_index_in_threadgroup (threadIdx.x >> 5)
#define threadgroup_position_in_grid blockIdx
#define threadgroups_per_grid gridDim
#define threadgroup_barrier(flags) __syncthreads()
// Launches of a graph overlap (see runtime/hosts/cuda/launch_graph.py): a threadgroup waits until what came before has
// ended, then lets those of the next launch come, which wait in turn. `mlxr_due`: it has not waited yet.
#if __CUDA_ARCH__ >= 900
#define MLXR_AWAIT_INPUTS()                                       \
    if (mlxr_due) {                                               \
        mlxr_due = false;                                         \
        asm volatile("griddepcontrol.wait;" ::: "memory");        \
        asm volatile("griddepcontrol.launch_dependents;" ::);     \
    }
#define MLXR_LEAD() asm volatile("griddepcontrol.launch_dependents;" ::);
#define MLXR_AHEAD(stages) stages  // while the launch before ends
#else
#define MLXR_AWAIT_INPUTS()
#define MLXR_LEAD()
#endif
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __half half;
typedef __half float16_t;
typedef __nv_bfloat16 bfloat;
typedef __nv_bfloat16 bfloat16_t;

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

namespace mlxr {

template <typename T, int N>
struct vec;
template <typename S, typename T>
void widen(const vec<S, 4>& v, vec<T, 4>& to);
void widen(const vec<unsigned char, 4>& v, vec<float, 4>& to);
void widen(const vec<signed char, 4>& v, vec<float, 4>& to);

template <typename T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
    T x, y;
    vec() = default;
    vec(T a) : x(a), y(a) {}
    vec(T a, T b) : x(a), y(b) {}
    template <typename S>
    explicit vec(const vec<S, 2>& v) : x((T)v.x), y((T)v.y) {}
    T& operator[](uint i) { return (&x)[i]; }
    T operator[](uint i) const { return i ? y : x; }
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
    union {
        struct {
            T x, y, z, w;
        };
        struct {
            vec<T, 2> xy, zw;
        };
    };
    vec() = default;
    vec(T a) : x(a), y(a), z(a), w(a) {}
    vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    template <typename S>
    explicit vec(const vec<S, 4>& v) { widen(v, *this); }
    T& operator[](uint i) { return (&x)[i]; }
    T operator[](uint i) const { return (&x)[i]; }
};

template <typename S, typename T>
__forceinline__ void widen(const vec<S, 4>& v, vec<T, 4>& to) {
    to.x = (T)v.x, to.y = (T)v.y, to.z = (T)v.z, to.w = (T)v.w;
}
// Bytes to floats at full rate: a permutation makes 2^23 + byte. The conversion instruction is an eighth as fast: gate
// and up of 8B in 4 bits took 44.8 us with it and take 33.2 on an H200 (experiment 2 of benchmarks/NOTES-gpu.md).
__forceinline__ void widen_bytes(uint u, float less, vec<float, 4>& to) {
    to.x = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7440)) - less;
    to.y = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7441)) - less;
    to.z = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7442)) - less;
    to.w = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7443)) - less;
}
__forceinline__ void widen(const vec<unsigned char, 4>& v, vec<float, 4>& to) {
    widen_bytes(*(const uint*)&v, 8388608.0f, to);
}
__forceinline__ void widen(const vec<signed char, 4>& v, vec<float, 4>& to) {
    widen_bytes(*(const uint*)&v ^ 0x80808080u, 8388736.0f, to);
}
// A product that is added here is rounded first.
__forceinline__ vec<float, 4> sum(vec<float, 4> x, float y) {
    return vec<float, 4>(__fadd_rn(x.x, y), __fadd_rn(x.y, y), __fadd_rn(x.z, y), __fadd_rn(x.w, y));
}
__forceinline__ void store16(void* p, vec<uint, 4> v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

#define MLXR_OPERATOR(op)                                                                                \
    template <typename T>                                                                                \
    vec<T, 2> operator op(vec<T, 2> a, vec<T, 2> b) { return vec<T, 2>(a.x op b.x, a.y op b.y); }        \
    template <typename T>                                                                                \
    vec<T, 4> operator op(vec<T, 4> a, vec<T, 4> b) {                                                    \
        return vec<T, 4>(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w);                                \
    }                                                                                                    \
    template <typename T, int N, typename S>                                                             \
    vec<T, N> operator op(vec<T, N> a, S b) { return a op vec<T, N>((T)b); }                             \
    template <typename T, int N, typename S>                                                             \
    vec<T, N> operator op(S a, vec<T, N> b) { return vec<T, N>((T)a) op b; }                             \
    template <typename T, int N, typename S>                                                             \
    vec<T, N>& operator op##=(vec<T, N>& a, S b) { return a = a op b; }
MLXR_OPERATOR(+)
MLXR_OPERATOR(-)
MLXR_OPERATOR(*)
MLXR_OPERATOR(/)
MLXR_OPERATOR(&)
MLXR_OPERATOR(|)
MLXR_OPERATOR(^)
MLXR_OPERATOR(<<)
MLXR_OPERATOR(>>)
#undef MLXR_OPERATOR

template <typename T, int N>
vec<T, N> operator-(vec<T, N> a) { return vec<T, N>((T)0) - a; }

}  // namespace mlxr

#define float2 mlxr::vec<float, 2>
#define float4 mlxr::vec<float, 4>
#define half2 mlxr::vec<__half, 2>
#define half4 mlxr::vec<__half, 4>
#define int2 mlxr::vec<int, 2>
#define int4 mlxr::vec<int, 4>
#define uint2 mlxr::vec<uint, 2>
#define uint4 mlxr::vec<uint, 4>
#define char2 mlxr::vec<signed char, 2>
#define char4 mlxr::vec<signed char, 4>
#define uchar2 mlxr::vec<uchar, 2>
#define uchar4 mlxr::vec<uchar, 4>
#define short2 mlxr::vec<short, 2>
#define ushort2 mlxr::vec<ushort, 2>
#define ushort4 mlxr::vec<ushort, 4>

template <typename To, typename From>
__forceinline__ To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type between types of different sizes");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

#define MLXR_HALVES  // one instruction instead of two, see templates/metal/mma.jinja
__forceinline__ uint lower_halves(uint a, uint b) { return __byte_perm(a, b, 0x5410); }
__forceinline__ uint upper_halves(uint a, uint b) { return __byte_perm(a, b, 0x7632); }

#if __CUDA_ARCH__ >= 800
#define MLXR_PACK  // two conversions in one instruction, see templates/metal/vector.jinja
__forceinline__ uint pack_bf16(float a, float b) { return as_type<uint>(__floats2bfloat162_rn(a, b)); }
__forceinline__ uint pack_f16(float a, float b) { return as_type<uint>(__floats2half2_rn(a, b)); }

#define MLXR_MMA  // see templates/metal/mma.jinja
#define MLXR_PRODUCT(type)                                                                                       \
    __forceinline__ float4 mma_##type(uint4 a, uint2 b, float4 c, uint) {                                       \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type                                            \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                              \
            : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)                                                        \
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));                                      \
        return c;                                                                                               \
    }
MLXR_PRODUCT(f16)
MLXR_PRODUCT(bf16)
#undef MLXR_PRODUCT
__forceinline__ float4 mma_f16(uint4 a, uint2 b, uint) {
    float4 c;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c.x), "=f"(c.y), "=f"(c.z), "=f"(c.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(0.0f));
    return c;
}
#endif

#if __CUDA_ARCH__ >= 800
#define MLXR_MMA_U8  // see templates/metal/digits.jinja
__forceinline__ int4 mma_u8(uint4 a, uint2 b, int4 c, uint) {
    int4 d;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w));
    return d;
}
#endif

#if __CUDA_ARCH__ >= 900
#define MLXR_TIMES_PAIR  // one instruction, see templates/metal/mma.jinja
__forceinline__ uint times_pair(uint a, uint b) {
    uint c;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
#endif

#if __CUDA_ARCH__ >= 800  // see templates/metal/mma.jinja
#define MLXR_F16_PAIRS
__forceinline__ uint f16_fma(uint a, uint b, uint c) {
    uint sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
__forceinline__ uint f16_times(uint a, uint b) {
    uint product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
__forceinline__ uint f16_of_byte(uint word, uint byte, uint less) {
    uint number;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(number) : "r"(__byte_perm(word, 0x64646464u, 0x4040u + byte * 0x0101u)), "r"(less));
    return number;
}
#endif

#if __CUDA_ARCH__ >= 800  // see templates/metal/matvec_stream.metal.jinja
#define MLXR_COPY_AHEAD(to, from) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint)__cvta_generic_to_shared(to)), "l"(from) : "memory")
#define MLXR_END_COPIES() asm volatile("cp.async.commit_group;" ::: "memory")
#define MLXR_AWAIT_COPIES(left) asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory")
#endif

// Rows that begin at multiples of 32 bytes, into the second-level cache.
#define MLXR_WANT(p, bytes) mlxr_want(p, bytes)
__forceinline__ void mlxr_want(const void* p, uint bytes) {
    for (uint at = 0; at < bytes; at += 128u) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)p + at));
    }
}

#if __CUDA_ARCH__ >= 900
#define MLXR_WANT_RUN(p, bytes) \
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"((uint)(bytes)) : "memory")
#endif

enum class mem_flags { mem_none, mem_threadgroup, mem_device };
__forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <typename T>
__forceinline__ T simd_shuffle(T x, uint lane) { return __shfl_sync(0xffffffffu, x, (int)lane); }
template <typename T>
__forceinline__ T simd_shuffle_xor(T x, uint mask) { return __shfl_xor_sync(0xffffffffu, x, (int)mask); }
template <typename T>
__forceinline__ T simd_shuffle_down(T x, uint delta) { return __shfl_down_sync(0xffffffffu, x, delta); }
template <typename T>
__forceinline__ T simd_broadcast(T x, uint lane) { return simd_shuffle(x, lane); }
// The sum of x in the lanes before this one.
__forceinline__ uint simd_prefix_exclusive_sum(uint x) {
    uint sum = x;
    _Pragma("unroll") for (uint delta = 1; delta < 32; delta <<= 1) {
        const uint other = __shfl_up_sync(0xffffffffu, sum, delta);
        sum += (threadIdx.x & 31u) >= delta ? other : 0u;
    }
    return sum - x;
}
#define MLXR_REDUCTION(name, expression)                             \
    template <typename T>                                            \
    __forceinline__ T name(T a) {                                    \
        _Pragma("unroll") for (uint mask = 16; mask; mask >>= 1) {   \
            const T b = simd_shuffle_xor(a, mask);                   \
            a = expression;                                          \
        }                                                            \
        return a;                                                    \
    }
MLXR_REDUCTION(simd_sum, a + b)
MLXR_REDUCTION(simd_max, a > b ? a : b)
MLXR_REDUCTION(simd_min, a < b ? a : b)
#undef MLXR_REDUCTION
#if __CUDA_ARCH__ >= 800  // one instruction
__forceinline__ uint simd_sum(uint x) { return __reduce_add_sync(0xffffffffu, x); }
__forceinline__ uint simd_max(uint x) { return __reduce_max_sync(0xffffffffu, x); }
__forceinline__ uint simd_min(uint x) { return __reduce_min_sync(0xffffffffu, x); }
#endif

namespace metal {
__forceinline__ bool isnan(float x) { return ::isnan(x); }
__forceinline__ bool isinf(float x) { return ::isinf(x); }
__forceinline__ bool isfinite(float x) { return ::isfinite(x); }
__forceinline__ float abs(float x) { return fabsf(x); }
__forceinline__ float rint(float x) { return rintf(x); }
__forceinline__ float floor(float x) { return floorf(x); }
__forceinline__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
__forceinline__ float clamp(float x, float low, float high) { return fminf(fmaxf(x, low), high); }
__forceinline__ int clamp(int x, int low, int high) { return ::min(::max(x, low), high); }
namespace precise {
// Not inlined: the reduction of large angles is long, and kernels that unroll would hold it dozens of times.
__noinline__ float sin(float x) { return sinf(x); }
__noinline__ float cos(float x) { return cosf(x); }
__forceinline__ float exp(float x) { return expf(x); }
__forceinline__ float log(float x) { return logf(x); }
__forceinline__ float log2(float x) { return log2f(x); }
__forceinline__ float tanh(float x) { return tanhf(x); }
__forceinline__ float sqrt(float x) { return sqrtf(x); }
__forceinline__ float rsqrt(float x) { return 1.0f / sqrtf(x); }
}  // namespace precise
namespace fast {
__forceinline__ float exp(float x) { return __expf(x); }
__forceinline__ float divide(float x, float y) {
    float z;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
}  // namespace fast
}  // namespace metal
using metal::clamp;

// One instruction, as in Metal's fast math. exp2f takes more, to give subnormal results, which are 0 here. Not measured
// alone.
__forceinline__ float mlxr_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define exp2 mlxr_exp2
