/* Blocks of a cluster on CUDA: a part of metal_on_cuda.cuh, for cards whose blocks reach each other's memory.
 *
 * Recorded launches have clusters, those of MLX and blocks of a step kernel have none.
 */
#if __CUDA_ARCH__ >= 900
// They read each other's memory once they have met; see templates/metal/matmul_stages.metal.jinja.
#define MLXR_ARE_TOGETHER() mlxr_are_together()
__forceinline__ bool mlxr_are_together() {
    unsigned blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    return blocks > 1;
}
#define MLXR_OF_RANK(place, rank) mlxr_of_rank(place, rank)
#define MLXR_ARRIVE() asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#define MLXR_AWAIT_ALL() asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#define MLXR_MEET() MLXR_ARRIVE() MLXR_AWAIT_ALL()
// They meet to read each other's threadgroup memory alone: MLXR_ARRIVE also waits for what others on the card could see.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
#define MLXR_MEET_TO_READ()                                                                                             \
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;\nbarrier.cluster.arrive.relaxed;" ::: "memory"); \
    MLXR_AWAIT_ALL()
#else
#define MLXR_MEET_TO_READ() MLXR_MEET()
#endif
#define MLXR_LEAVE() asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
__forceinline__ float mlxr_of_rank(const float* place, unsigned rank) {
    unsigned at;
    float x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((unsigned)__cvta_generic_to_shared(place)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}
#define MLXR_VECTOR_OF_RANK(place, rank) mlxr_vector_of_rank(place, rank)
__forceinline__ float4 mlxr_vector_of_rank(const float4* place, uint rank) {
    uint at;
    float4 v;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint)__cvta_generic_to_shared(place)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

// They write to each other's memory, see templates/metal/attend_sent.jinja: what comes rings the reader's bell, which knows how many
// bytes it waits for. All have begun, and their bells can be rung, after MLXR_AWAIT_BEGIN. Blocks without others have no bell.
#define MLXR_EXPECT(are_together, bytes)                                 \
    MLXR_THREADGROUP(ulong, mlxr_bell_place, 1);                         \
    ulong* const mlxr_bell = (are_together) ? mlxr_bell_place : nullptr; \
    if (mlxr_bell) {                                                     \
        if (thread_index_in_threadgroup == 0) {                          \
            mlxr_expect(mlxr_bell, bytes);                               \
        }                                                                \
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");    \
    }
#define MLXR_AWAIT_BEGIN()                                    \
    if (mlxr_bell) {                                          \
        asm volatile("barrier.cluster.wait;" ::: "memory");   \
    }
#define MLXR_SEND_PAIR(place, rank, x) mlxr_send(mlxr_bell, place, rank, x)
#define MLXR_SEND_VECTOR(place, rank, x) mlxr_send(mlxr_bell, place, rank, x)
#define MLXR_AWAIT_SENT()                                    \
    if (mlxr_bell) {                                         \
        mlxr_await_bell(mlxr_bell);                          \
    } else {                                                 \
        threadgroup_barrier(mem_flags::mem_threadgroup);     \
    }
__forceinline__ uint mlxr_near(const void* place) { return (uint)__cvta_generic_to_shared(place); }
__forceinline__ uint mlxr_at_rank(const void* place, uint rank) {
    uint at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(mlxr_near(place)), "r"(rank));
    return at;
}
__forceinline__ void mlxr_expect(ulong* bell, uint bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(mlxr_near(bell)) : "memory");
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(mlxr_near(bell)), "r"(bytes) : "memory");
}
__forceinline__ void mlxr_await_bell(ulong* bell) {
    uint is_done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(is_done) : "r"(mlxr_near(bell)) : "memory");
    } while (!is_done);
}
__forceinline__ void mlxr_send(ulong* bell, float2* place, uint rank, float2 x) {
    if (!bell) {
        *place = x;
        return;
    }
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(mlxr_at_rank(place, rank)),
                 "f"(x.x), "f"(x.y), "r"(mlxr_at_rank(bell, rank)) : "memory");
}
__forceinline__ void mlxr_send(ulong* bell, float4* place, uint rank, float4 x) {
    if (!bell) {
        *place = x;
        return;
    }
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(mlxr_at_rank(place, rank)),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(mlxr_at_rank(bell, rank)) : "memory");
}
#endif
