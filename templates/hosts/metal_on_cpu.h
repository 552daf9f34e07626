/* Metal on a CPU: what a standalone .metal file finds above itself when the sim host compiles it. This file has the
 * language and its types, metal_on_cpu_math.h the functions of numbers, metal_on_cpu_simd.h the barriers, simdgroup
 * operations, memory checks and what calls the kernel.
 *
 * The file is compiled by clang as C++ for OpenCL, whose address spaces are Metal's under other names, so a pointer
 * that crosses from one to another is a compile error here as on a Mac. The subset of Metal that MLXR's kernels use is
 * provided: scalar and vector types, conversions, math, simdgroup and quad operations, barriers. There is no double,
 * and program-scope variables must be constant, as in Metal.
 *
 * Vector constructors such as float4(a, b) are macros over sim::make, because C++ for OpenCL has no such expressions.
 */
#define device __global
#define threadgroup __local
#define thread __private
#define constant __constant
#define kernel
/* Keywords of OpenCL that are plain names in Metal. */
#define global mlxr_name_global
#define local mlxr_name_local
#define generic mlxr_name_generic
#define pipe mlxr_name_pipe
#define read_only mlxr_name_read_only
#define write_only mlxr_name_write_only
#define read_write mlxr_name_read_write
#define uniform mlxr_name_uniform
#define vec_step mlxr_name_vec_step

#define __METAL__ 1
#define __METAL_VERSION__ 310
#define __HAVE_BFLOAT__ 1
#define METAL_FUNC inline __attribute__((always_inline))

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef _Float16 float16_t;
typedef __bf16 bfloat;
typedef __bf16 bfloat16_t;
#define half float16_t

extern "C" uint sim_synchronise(uint operation, uint site, uint value, uint argument);
extern "C" threadgroup void* sim_threadgroup_array(uint site, uint size, uint count, uint align,
                                                   const constant char* name);

/* Nothing comes to a cache here, but a kernel may only ask for what is there. */
#define MLXR_WANT_RUN(p, bytes) sim_wants(p, bytes)
METAL_FUNC void sim_wants(const device uchar* p, uint bytes) {
    (void)*(const volatile device uchar*)p;
    (void)*(const volatile device uchar*)(p + bytes - 1);
}

/* One array in threadgroup memory, the same for all threads of a threadgroup. */
#define MLXR_THREADGROUP(T, name, count)                                                                      \
    threadgroup T* const name = (threadgroup T*)sim_threadgroup_array(                                        \
        __LINE__ << 12 | (__COUNTER__ & 4095), sizeof(T), (count), alignof(T), #name)

namespace metal {
template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
}

#define MLXR_VECTORS(T)          \
    typedef metal::vec<T, 2> T##2; \
    typedef metal::vec<T, 3> T##3; \
    typedef metal::vec<T, 4> T##4;
MLXR_VECTORS(char)
MLXR_VECTORS(uchar)
MLXR_VECTORS(short)
MLXR_VECTORS(ushort)
MLXR_VECTORS(int)
MLXR_VECTORS(uint)
MLXR_VECTORS(float)
MLXR_VECTORS(bfloat)
typedef metal::vec<float16_t, 2> half2;
typedef metal::vec<float16_t, 3> half3;
typedef metal::vec<float16_t, 4> half4;
#undef MLXR_VECTORS
/* Stored without padding, aligned as its element. */
struct packed_float3 {
    float x, y, z;
    operator float3() const { return (float3){x, y, z}; }
};

namespace sim {
#define MLXR_INLINE inline __attribute__((always_inline))

template <typename A, typename B>
struct same {
    static constexpr constant bool value = false;
};
template <typename A>
struct same<A, A> {
    static constexpr constant bool value = true;
};

template <typename V>
struct shape {
    typedef V element;
    static constexpr constant int lanes = 1;
};
template <typename T>
struct shape<metal::vec<T, 2>> {
    typedef T element;
    static constexpr constant int lanes = 2;
};
template <typename T>
struct shape<metal::vec<T, 3>> {
    typedef T element;
    static constexpr constant int lanes = 3;
};
template <typename T>
struct shape<metal::vec<T, 4>> {
    typedef T element;
    static constexpr constant int lanes = 4;
};

template <typename D, typename S>
MLXR_INLINE D convert(S x) {
    if constexpr (same<D, S>::value) {
        return x;
    } else if constexpr (same<D, bfloat>::value || same<S, bfloat>::value) {
        return (D)(float)x;
    } else {
        return (D)x;
    }
}

template <typename V, typename S>
MLXR_INLINE void put(thread V& v, thread int& i, S x) {
    typedef typename shape<V>::element T;
    if constexpr (shape<S>::lanes == 1) {
        v[i++] = convert<T>(x);
    } else {
        for (int k = 0; k < shape<S>::lanes; k++) v[i++] = convert<T, typename shape<S>::element>(x[k]);
    }
}

template <typename... A>
struct lanes_of;
template <typename A>
struct lanes_of<A> {
    static constexpr constant int value = shape<A>::lanes;
};
template <typename A, typename B, typename... R>
struct lanes_of<A, B, R...> {
    static constexpr constant int value = shape<A>::lanes + lanes_of<B, R...>::value;
};

/* V(x), V(a, b, ...): a splat, a conversion, or components of scalars and vectors in any mix. */
template <typename V>
MLXR_INLINE V make() {
    return (V)0;
}
template <typename V, typename A, typename... R>
MLXR_INLINE V make(A a, R... rest) {
    typedef typename shape<V>::element T;
    if constexpr (sizeof...(R) == 0 && shape<A>::lanes == 1) {
        return (V)convert<T>(a);
    } else {
        static_assert(lanes_of<A, R...>::value == shape<V>::lanes,
                      "a vector constructor with too few or too many components");
        V v;
        int i = 0;
        put(v, i, a);
        (put(v, i, rest), ...);
        return v;
    }
}
}  // namespace sim

#define char2(...) sim::make<char2>(__VA_ARGS__)
#define char3(...) sim::make<char3>(__VA_ARGS__)
#define char4(...) sim::make<char4>(__VA_ARGS__)
#define uchar2(...) sim::make<uchar2>(__VA_ARGS__)
#define uchar3(...) sim::make<uchar3>(__VA_ARGS__)
#define uchar4(...) sim::make<uchar4>(__VA_ARGS__)
#define short2(...) sim::make<short2>(__VA_ARGS__)
#define short3(...) sim::make<short3>(__VA_ARGS__)
#define short4(...) sim::make<short4>(__VA_ARGS__)
#define ushort2(...) sim::make<ushort2>(__VA_ARGS__)
#define ushort3(...) sim::make<ushort3>(__VA_ARGS__)
#define ushort4(...) sim::make<ushort4>(__VA_ARGS__)
#define int2(...) sim::make<int2>(__VA_ARGS__)
#define int3(...) sim::make<int3>(__VA_ARGS__)
#define int4(...) sim::make<int4>(__VA_ARGS__)
#define uint2(...) sim::make<uint2>(__VA_ARGS__)
#define uint3(...) sim::make<uint3>(__VA_ARGS__)
#define uint4(...) sim::make<uint4>(__VA_ARGS__)
#define half2(...) sim::make<half2>(__VA_ARGS__)
#define half3(...) sim::make<half3>(__VA_ARGS__)
#define half4(...) sim::make<half4>(__VA_ARGS__)
#define bfloat2(...) sim::make<bfloat2>(__VA_ARGS__)
#define bfloat3(...) sim::make<bfloat3>(__VA_ARGS__)
#define bfloat4(...) sim::make<bfloat4>(__VA_ARGS__)
#define float2(...) sim::make<float2>(__VA_ARGS__)
#define float3(...) sim::make<float3>(__VA_ARGS__)
#define float4(...) sim::make<float4>(__VA_ARGS__)

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 0x1.fffffep+127f
#define FLT_MAX 0x1.fffffep+127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define HALF_MAX 65504.0f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_1_PI_F 0.318309886183790671538f
#define M_2_PI_F 0.636619772367581343076f
#define M_SQRT2_F 1.41421356237309504880f
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
