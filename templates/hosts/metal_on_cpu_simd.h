/* Metal on a CPU: barriers, simdgroup operations, memory checks, entry. Follows metal_on_cpu_math.h. */
namespace metal {
/* ---- barriers and simdgroup operations: their call site, a default argument, is what divergence is found by; their
 * numbers are those of sim_runtime.h ---- */
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MLXR_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
MLXR_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) { return (mem_flags)((uint)a & (uint)b); }
}  // namespace metal

#define MLXR_SITE uint line = __builtin_LINE(), uint column = __builtin_COLUMN()
#define MLXR_HERE (line << 12 | (column & 4095u))

extern "C" uint sim_lane();

namespace sim {
enum operation : uint {
    sum_f32, product_f32, max_f32, min_f32,
    sum_i32, product_i32, max_i32, min_i32, max_u32, min_u32,
    bits_and, bits_or, bits_xor,
    prefix_exclusive_sum_f32, prefix_inclusive_sum_f32, prefix_exclusive_sum_i32, prefix_inclusive_sum_i32,
    ballot,
    shuffle, shuffle_xor, shuffle_up, shuffle_down, broadcast,
    simdgroup_barrier, threadgroup_barrier,
};

template <typename T>
MLXR_INLINE T reduce(T x, uint on_float, uint on_int, uint on_uint, uint site) {
    if constexpr (shape<T>::lanes > 1) {
        for (int i = 0; i < shape<T>::lanes; i++) {
            x[i] = reduce<typename shape<T>::element>(x[i], on_float, on_int, on_uint, site);
        }
        return x;
    } else if constexpr ((T)0.5f != (T)0) {
        static_assert(sizeof(T) <= 4, "simdgroup operations take types of at most 4 bytes");
        return (T)__builtin_bit_cast(float, sim_synchronise(on_float, site, __builtin_bit_cast(uint, (float)x), 0));
    } else {
        static_assert(sizeof(T) <= 4, "simdgroup operations take types of at most 4 bytes");
        return (T)sim_synchronise((T)-1 < (T)0 ? on_int : on_uint, site, (uint)x, 0);
    }
}

template <typename T>
MLXR_INLINE T move(T x, uint operation, uint argument, uint site) {
    if constexpr (shape<T>::lanes > 1) {
        for (int i = 0; i < shape<T>::lanes; i++) {
            x[i] = move<typename shape<T>::element>(x[i], operation, argument, site);
        }
        return x;
    } else if constexpr (sizeof(T) == 4) {
        return __builtin_bit_cast(T, sim_synchronise(operation, site, __builtin_bit_cast(uint, x), argument));
    } else if constexpr (sizeof(T) == 2) {
        return __builtin_bit_cast(
            T, (ushort)sim_synchronise(operation, site, __builtin_bit_cast(ushort, x), argument));
    } else {
        static_assert(sizeof(T) == 1, "simdgroup operations take types of at most 4 bytes");
        return (T)sim_synchronise(operation, site, (uint)x, argument);
    }
}
}  // namespace sim

namespace metal {
MLXR_INLINE void threadgroup_barrier(mem_flags flags, MLXR_SITE) {
    sim_synchronise(sim::threadgroup_barrier, MLXR_HERE, (uint)flags, 0);
}
MLXR_INLINE void simdgroup_barrier(mem_flags flags, MLXR_SITE) {
    sim_synchronise(sim::simdgroup_barrier, MLXR_HERE, (uint)flags, 0);
}

#define MLXR_REDUCTION(name, on_float, on_int, on_uint)                             \
    template <typename T>                                                           \
    MLXR_INLINE T name(T x, MLXR_SITE) {                                            \
        return sim::reduce<T>(x, sim::on_float, sim::on_int, sim::on_uint, MLXR_HERE); \
    }
MLXR_REDUCTION(simd_sum, sum_f32, sum_i32, sum_i32)
MLXR_REDUCTION(simd_product, product_f32, product_i32, product_i32)
MLXR_REDUCTION(simd_max, max_f32, max_i32, max_u32)
MLXR_REDUCTION(simd_min, min_f32, min_i32, min_u32)
MLXR_REDUCTION(simd_prefix_exclusive_sum, prefix_exclusive_sum_f32, prefix_exclusive_sum_i32, prefix_exclusive_sum_i32)
MLXR_REDUCTION(simd_prefix_inclusive_sum, prefix_inclusive_sum_f32, prefix_inclusive_sum_i32, prefix_inclusive_sum_i32)
#undef MLXR_REDUCTION
#define MLXR_REDUCTION(name, operation)                                             \
    template <typename T>                                                           \
    MLXR_INLINE T name(T x, MLXR_SITE) {                                            \
        static_assert((T)0.5f == (T)0, #name " takes integers");                    \
        return sim::reduce<T>(x, sim::operation, sim::operation, sim::operation, MLXR_HERE); \
    }
MLXR_REDUCTION(simd_and, bits_and)
MLXR_REDUCTION(simd_or, bits_or)
MLXR_REDUCTION(simd_xor, bits_xor)
#undef MLXR_REDUCTION

#define MLXR_MOVE(name, operation)                                                  \
    template <typename T>                                                           \
    MLXR_INLINE T name(T x, ushort argument, MLXR_SITE) {                           \
        return sim::move<T>(x, sim::operation, argument, MLXR_HERE);                \
    }
MLXR_MOVE(simd_shuffle, shuffle)
MLXR_MOVE(simd_shuffle_xor, shuffle_xor)
MLXR_MOVE(simd_shuffle_up, shuffle_up)
MLXR_MOVE(simd_shuffle_down, shuffle_down)
MLXR_MOVE(simd_broadcast, broadcast)
MLXR_MOVE(quad_shuffle_xor, shuffle_xor)
#undef MLXR_MOVE
template <typename T>
MLXR_INLINE T simd_broadcast_first(T x, MLXR_SITE) {
    return sim::move<T>(x, sim::broadcast, 0, MLXR_HERE);
}
template <typename T>
MLXR_INLINE T quad_broadcast(T x, ushort lane, MLXR_SITE) {
    return sim::move<T>(x, sim::shuffle, (sim_lane() & ~3u) | (lane & 3u), MLXR_HERE);
}
template <typename T>
MLXR_INLINE T quad_shuffle(T x, ushort lane, MLXR_SITE) {
    return quad_broadcast(x, lane, line, column);
}
#define MLXR_QUAD(name, expression)                                                 \
    template <typename T>                                                           \
    MLXR_INLINE T name(T a, MLXR_SITE) {                                            \
        T b = sim::move<T>(a, sim::shuffle_xor, 1, MLXR_HERE);                      \
        a = (expression);                                                           \
        b = sim::move<T>(a, sim::shuffle_xor, 2, MLXR_HERE);                        \
        return (expression);                                                        \
    }
MLXR_QUAD(quad_sum, a + b)
MLXR_QUAD(quad_max, max(a, b))
MLXR_QUAD(quad_min, min(a, b))
#undef MLXR_QUAD

/* Simdgroup operations need all lanes here, so the first active lane is lane 0. */
MLXR_INLINE bool simd_is_first() { return sim_lane() == 0; }

struct simd_vote {
    typedef ulong vote_t;
    uint mask, lanes;
    bool all() const { return mask == lanes; }
    bool any() const { return mask != 0; }
    explicit operator vote_t() const { return mask; }
};
MLXR_INLINE simd_vote simd_ballot(bool x, MLXR_SITE) {
    simd_vote vote;
    vote.mask = sim_synchronise(sim::ballot, MLXR_HERE, x, 0);
    vote.lanes = sim_synchronise(sim::ballot, MLXR_HERE, 1, 0);
    return vote;
}
MLXR_INLINE bool simd_any(bool x, MLXR_SITE) { return sim_synchronise(sim::ballot, MLXR_HERE, x, 0) != 0; }
MLXR_INLINE bool simd_all(bool x, MLXR_SITE) { return sim_synchronise(sim::ballot, MLXR_HERE, !x, 0) == 0; }
}  // namespace metal
#undef MLXR_SITE
#undef MLXR_HERE

using metal::as_type;
using metal::vec;

/* ---- checks: the inline half; sim_checks.c has the other ---- */
extern "C" __attribute__((preserve_all)) void mlxr_check(const void* address, uint slot, uint site, uint what);
extern "C" __attribute__((preserve_all)) void mlxr_check_range(const void* address, ulong bytes, uint site,
                                                               uint is_write);

namespace sim {
struct site {
    ulong base, limit;
};
}  // namespace sim

/* The build puts calls of these before the kernel's accesses, so they are kept though nothing calls them yet. */
#define MLXR_INSTRUMENT extern "C" __attribute__((used, always_inline, disable_sanitizer_instrumentation)) inline void
#define MLXR_CHECK(name, bytes, align_bits, is_write)                                                          \
    MLXR_INSTRUMENT mlxr_check_##name(const void* address, uint slot, uint number) {                           \
        ulong stack;                                                                                           \
        SIM_STACK_POINTER(stack);                                                                              \
        thread sim::site* site = (thread sim::site*)((stack & ~(SIM_REGION_SIZE - 1)) + SIM_SITES_OFFSET) + slot; \
        ulong offset = (ulong)address - site->base;                                                            \
        if (__builtin_expect(__builtin_rotateright64(offset, align_bits) > site->limit, 0)) {                  \
            mlxr_check(address, slot, number, SIM_ACCESS(bytes, align_bits, is_write));                        \
        }                                                                                                      \
    }
#define MLXR_CHECKS(bytes, align_bits)                            \
    MLXR_CHECK(read##bytes, bytes, align_bits, 0)                 \
    MLXR_CHECK(write##bytes, bytes, align_bits, 1)                \
    MLXR_CHECK(unaligned_read##bytes, bytes, 0, 0)                \
    MLXR_CHECK(unaligned_write##bytes, bytes, 0, 1)
MLXR_CHECKS(1, 0)
MLXR_CHECKS(2, 1)
MLXR_CHECKS(4, 2)
MLXR_CHECKS(8, 3)
MLXR_CHECKS(16, 4)
#undef MLXR_CHECKS
#undef MLXR_CHECK
/* Referenced so that the rewritten module declares it. */
MLXR_INSTRUMENT mlxr_check_copy(const void* to, const void* from, ulong bytes, uint number) {
    mlxr_check_range(from, bytes, number, 0);
    mlxr_check_range(to, bytes, number, 1);
}
MLXR_INSTRUMENT mlxr_check_fill(const void* to, ulong bytes, uint number) { mlxr_check_range(to, bytes, number, 1); }

/* What the entry function is given, next to the buffers and the thread's index; SimGroup of sim_runtime.h. */
struct MlxrSimGroup {
    uint group[3], groups[3], threads[3], count;
};
namespace sim {
MLXR_INLINE uint position(const thread MlxrSimGroup* g, uint index, int axis) {
    if (g->threads[0] == g->count) return axis == 0 ? index : 0;
    if (axis == 0) return index % g->threads[0];
    return axis == 1 ? index / g->threads[0] % g->threads[1] : index / g->threads[0] / g->threads[1];
}
}  // namespace sim
#define MLXR_ENTRY extern "C" __attribute__((visibility("default"), disable_sanitizer_instrumentation)) void
