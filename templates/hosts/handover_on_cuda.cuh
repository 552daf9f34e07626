/* A card's two ends of what it and the CPU, which has some layers' experts, do in turns (see runtime/hosts/handover.py).
 *
 * Both kernels have BLOCKS blocks, and the memory that both see is the machine's. `give` writes rows, chosen experts and
 * weights there, each block its part, and then its number. `take` waits for the CPU's answer, each block for itself, and
 * adds its part of the sum to the residual. Numbers are in the card's memory and the kernels advance them, so they may be
 * replayed. A CPU that never answers is an error, and no reason to hang.
 *
 * Whoever includes it defines TYPE, GIVE, TAKE, THREADS, BLOCKS, TIMEOUT_NS, and the places STEP_AT, ANSWERED_AT, X_AT,
 * EXPERTS_AT, WEIGHTS_AT and SUM_AT in the memory.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef TYPE T;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void rounded(float x, float& to) { to = x; }
__device__ __forceinline__ void rounded(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void rounded(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

__device__ __forceinline__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// places: the memory that both see, and BLOCKS numbers in the card's own. weights is not read unless `weighs`.
extern "C" __global__ void __launch_bounds__(THREADS) GIVE(
    const T* x, const int* experts, const float* weights, const u64* places, u32* out, const int count,
    const int chosen, const int tokens, const int program, const int place, const int weighs) {
    char* const memory = (char*)places[0];
    u32* const number = (u32*)places[1] + blockIdx.x;
    const int first = blockIdx.x * THREADS + threadIdx.x, step = BLOCKS * THREADS;
    for (int i = first; i < count; i += step) {
        ((float*)(memory + X_AT))[i] = to_float(x[i]);
    }
    for (int i = first; i < chosen; i += step) {
        ((int*)(memory + EXPERTS_AT))[i] = experts[i];
        if (weighs) {
            ((float*)(memory + WEIGHTS_AT))[i] = weights[i];
        }
    }
    if (first == 0) {
        ((int*)(memory + STEP_AT))[0] = tokens;
        ((int*)(memory + STEP_AT))[1] = program;
        ((int*)(memory + STEP_AT))[2] = place;
    }
    if (first < 8) {
        out[first] = *number + 1;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 next = *number + 1;
        ((volatile u32*)memory)[blockIdx.x] = next;
        *number = next;
    }
}

// residual is not read unless `adds`.
extern "C" __global__ void __launch_bounds__(THREADS) TAKE(
    const u32* after, const T* residual, const u64* places, T* out, const int count, const int adds, const float scale) {
    const char* const memory = (const char*)places[0];
    if (threadIdx.x == 0) {
        const volatile u32* const answered = (const volatile u32*)(memory + ANSWERED_AT);
        const u32 next = after[0];  // not the last one that was taken and one: Ctrl-C may have left one out
        u64 late = 0;
        for (u32 spins = 1; *answered != next; spins++) {
            if (spins % 4096 == 0) {
                late = late == 0 ? now() + TIMEOUT_NS : late;
                if (now() > late) {
                    __trap();
                }
            }
        }
        __threadfence_system();
    }
    __syncthreads();
    const float* const sum = (const float*)(memory + SUM_AT);
    const int step = 4 * BLOCKS * THREADS;
    for (int i = 4 * (blockIdx.x * THREADS + threadIdx.x); i < count; i += step) {
        float part[4] = {0, 0, 0, 0};
        if (i + 4 <= count) {
            asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(part[0]), "=f"(part[1]), "=f"(part[2]), "=f"(part[3])
                         : "l"(sum + i)
                         : "memory");
        } else {
            for (int j = 0; i + j < count; j++) {
                part[j] = ((const volatile float*)sum)[i + j];
            }
        }
        for (int j = 0; j < 4 && i + j < count; j++) {
            rounded(adds ? to_float(residual[i + j]) + scale * part[j] : part[j], out[i + j]);
        }
    }
}
