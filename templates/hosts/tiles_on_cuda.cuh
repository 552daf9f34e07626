/* Instructions of four warps that read tiles in shared memory, beneath metal_on_cuda.cuh. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // see templates/metal/mma.jinja; rows of 128 bytes, swizzled over 1,024
#ifdef MLXR_POOL_BYTES
#define MLXR_TILES(name, count) MLXR_THREADGROUP(uint4, name, count)
#else
#define MLXR_TILES(name, count) __shared__ __align__(1024) uint4 name[count]
#endif
#define MLXR_SHOW_TILES() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define MLXR_AWAIT_PRODUCTS() asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
#define MLXR_ADD_PRODUCTS(type, tiles, sums, x, w, part, parts, lane)                \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                          \
    _Pragma("unroll") for (uint at = 0; at < 4; at++)                                \
        mlxr_products_##type<tiles>(sums, mlxr_tile(x) + at * 2, mlxr_tile(w) + at * 2); \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
__forceinline__ ulong mlxr_tile(const uint4* place) {
    const uint at = (uint)__cvta_generic_to_shared(place);
    return (ulong)((at & 0x3ffffu) >> 4) | 1ul << 16 | 64ul << 32 | 1ul << 62;
}
// The largest instructions first: tiles of 8 rows of w are 64 vectors apart.
#define MLXR_D1(i) "+f"(d[i].x), "+f"(d[i].y), "+f"(d[i].z), "+f"(d[i].w)
#define MLXR_D2(i) MLXR_D1(i), MLXR_D1(i + 1)
#define MLXR_D4(i) MLXR_D2(i), MLXR_D2(i + 2)
#define MLXR_D8(i) MLXR_D4(i), MLXR_D4(i + 4)
#define MLXR_D16(i) MLXR_D8(i), MLXR_D8(i + 8)
#define MLXR_N1 "%0, %1, %2, %3"
#define MLXR_N2 MLXR_N1 ", %4, %5, %6, %7"
#define MLXR_N4 MLXR_N2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MLXR_N8 MLXR_N4 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MLXR_N16 \
    MLXR_N8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
            ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MLXR_WIDE(type, count, columns, a, b)                                                                        \
    if constexpr (tiles >= count) {                                                                                  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" MLXR_N##count      \
                     "}, %" #a ", %" #b ", 1, 1, 1, 0, 0;" : MLXR_D##count(0) : "l"(x), "l"(w) : "memory");          \
        mlxr_products_##type<tiles - count>(d + count, x, w + count * 64);                                           \
        return;                                                                                                      \
    }
#define MLXR_PRODUCTS(type)                                                             \
    template <int tiles>                                                                \
    __forceinline__ void mlxr_products_##type(float4* d, ulong x, ulong w) {            \
        MLXR_WIDE(type, 16, 128, 64, 65)                                                \
        MLXR_WIDE(type, 8, 64, 32, 33)                                                  \
        MLXR_WIDE(type, 4, 32, 16, 17)                                                  \
        MLXR_WIDE(type, 2, 16, 8, 9)                                                    \
        MLXR_WIDE(type, 1, 8, 4, 5)                                                     \
    }
MLXR_PRODUCTS(bf16)
MLXR_PRODUCTS(f16)
#undef MLXR_PRODUCTS
// The first factor in registers, all of w's rows in one instruction. The first of several writes sums that nobody has written.
#define MLXR_NO_PRODUCTS(tiles, sums)
#define MLXR_BEGIN_PRODUCTS() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define MLXR_END_PRODUCTS() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define MLXR_AWAIT_BUT_LAST_PRODUCTS() asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory")
#define MLXR_ADD_TO_PRODUCTS(type, tiles, sums, first, a, x, at, step, lane) \
    mlxr_add_numbers_##type<tiles>(sums, first ? 0 : 1, a, mlxr_tile(x) + (at) + (step) * 2)
// Of x's columns, not its rows: pieces of 64 columns are `rows` times 8 vectors apart.
#define MLXR_ADD_ROWS_PRODUCTS(type, tiles, sums, a, x, rows, lane) \
    mlxr_add_rows_##type<tiles>(sums, a, mlxr_tile(x) + ((ulong)(rows) * 8 - 1 << 16))
// The compiler reads sums after the wait before this.
#define MLXR_HOLD(tiles, sums) \
    _Pragma("unroll") for (uint i = 0; i < tiles; i++) asm volatile("" : MLXR_D1b(sums[i]) :: "memory")
// A number that is never below 0 is there before what follows: the compiler would wait for products first.
#define MLXR_AFTER(x) if ((x) < 0.0f) asm volatile("trap;");
#define MLXR_D1b(v) "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
#define MLXR_D3(i) MLXR_D2(i), MLXR_D1(i + 2)
#define MLXR_D5(i) MLXR_D4(i), MLXR_D1(i + 4)
#define MLXR_D6(i) MLXR_D4(i), MLXR_D2(i + 4)
#define MLXR_D7(i) MLXR_D6(i), MLXR_D1(i + 6)
#define MLXR_N3 MLXR_N2 ", %8, %9, %10, %11"
#define MLXR_N5 MLXR_N4 ", %16, %17, %18, %19"
#define MLXR_N6 MLXR_N5 ", %20, %21, %22, %23"
#define MLXR_N7 MLXR_N6 ", %24, %25, %26, %27"
#define MLXR_NUMBERS(type, count, columns, turned, a0, a1, a2, a3, of_x, of_add)                                          \
    if constexpr (tiles == count) {                                                                                       \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #of_add ", 0;\n"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" MLXR_N##count "}, {%" #a0 \
                     ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #of_x ", p, 1, 1, " #turned ";}"                                 \
                     : MLXR_D##count(0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(x), "r"(add));                      \
    }
#define MLXR_ADD(type)                                                                \
    template <int tiles>                                                              \
    __forceinline__ void mlxr_add_numbers_##type(float4* d, int add, uint4 a, ulong x) { \
        static_assert(tiles >= 1 && tiles <= 8 || tiles == 16, "an instruction multiplies 8 to 64 rows, or 128"); \
        MLXR_NUMBERS(type, 1, 8, 0, 4, 5, 6, 7, 8, 9)                                 \
        MLXR_NUMBERS(type, 2, 16, 0, 8, 9, 10, 11, 12, 13)                            \
        MLXR_NUMBERS(type, 3, 24, 0, 12, 13, 14, 15, 16, 17)                          \
        MLXR_NUMBERS(type, 4, 32, 0, 16, 17, 18, 19, 20, 21)                          \
        MLXR_NUMBERS(type, 5, 40, 0, 20, 21, 22, 23, 24, 25)                          \
        MLXR_NUMBERS(type, 6, 48, 0, 24, 25, 26, 27, 28, 29)                          \
        MLXR_NUMBERS(type, 7, 56, 0, 28, 29, 30, 31, 32, 33)                          \
        MLXR_NUMBERS(type, 8, 64, 0, 32, 33, 34, 35, 36, 37)                          \
        MLXR_NUMBERS(type, 16, 128, 0, 64, 65, 66, 67, 68, 69)                        \
    }                                                                                 \
    template <int tiles>                                                              \
    __forceinline__ void mlxr_add_rows_##type(float4* d, uint4 a, ulong x) {          \
        static_assert(tiles == 8 || tiles == 16, "an instruction multiplies 64 or 128 columns"); \
        const int add = 1;                                                            \
        MLXR_NUMBERS(type, 8, 64, 1, 32, 33, 34, 35, 36, 37)                          \
        MLXR_NUMBERS(type, 16, 128, 1, 64, 65, 66, 67, 68, 69)                        \
    }
MLXR_ADD(bf16)
MLXR_ADD(f16)
#undef MLXR_ADD
#undef MLXR_NUMBERS
#endif
