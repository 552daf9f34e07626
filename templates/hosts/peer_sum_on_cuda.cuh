/* The sum over the ranks of a stage, through memory of their cards that all of them see (see peer_sums.py).
 *
 * Each rank writes its addend into a mailbox in every other card, and waits for the others' in its own. A word is 8
 * bytes with the message's number twice: 8 bytes are written at once, so a number that is right says that its half has
 * come, and no fence is needed. All ranks add in the same order, in f32.
 *
 * A block has its own part of the message, its own number, and mailboxes that nobody else touches, so that it waits for
 * the same block of the other ranks alone. Two mailboxes are used in turns: who writes message n + 2 has read n + 1 of
 * the others, and they wrote that after they had read n. Numbers are in memory and the kernel advances them, so it may
 * be replayed.
 *
 * It is a kernel of its own, of which the host defines NAME, or the part of a step kernel between its header and its
 * body (see compiler/targets/metal/decode_kernel/sum_in_step.py). Both share mailboxes, and so have equally many blocks
 * of BOX_WORDS. Whoever includes it defines TYPE, RANK, RANKS, THREADS, BLOCKS, BOX_WORDS, WORDS and TIMEOUT_NS.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define SUM_THREAD threadIdx.x
#define SUM_BLOCK blockIdx.x
#define SUM_BLOCKS gridDim.x
#define SUM_BARRIER() __syncthreads()
// ---- header
typedef TYPE T;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 PER_WORD = 8 / sizeof(T);
constexpr u32 PIECE = THREADS * WORDS;  // words that a block sends before it waits
static_assert(PIECE <= BOX_WORDS, "a mailbox holds a piece");

struct Word {
    u32 low, high;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void rounded(float x, float& to) { to = x; }
__device__ __forceinline__ void rounded(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void rounded(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

union Numbers {
    Word word;
    T each[PER_WORD];
    __device__ Numbers() {}
};

// A word of x; the last one may have fewer numbers.
__device__ __forceinline__ Word read_word(const T* x, u32 word, u32 count, bool aligned) {
    if (aligned && (word + 1) * PER_WORD <= count) {
        return ((const Word*)x)[word];
    }
    Numbers numbers;
    numbers.word = Word{0, 0};
    for (u32 i = 0; i < PER_WORD && word * PER_WORD + i < count; i++) {
        numbers.each[i] = x[word * PER_WORD + i];
    }
    return numbers.word;
}

__device__ __forceinline__ void write_word(T* out, u32 word, u32 count, const float* sum) {
    Numbers numbers;
#pragma unroll
    for (u32 i = 0; i < PER_WORD; i++) {
        rounded(sum[i], numbers.each[i]);
    }
    if ((word + 1) * PER_WORD <= count) {
        ((Word*)out)[word] = numbers.word;
        return;
    }
    for (u32 i = 0; i < PER_WORD && word * PER_WORD + i < count; i++) {
        out[word * PER_WORD + i] = numbers.each[i];
    }
}

__device__ __forceinline__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// The memory of a rank begins with a number for each block; mailboxes follow.
__device__ __forceinline__ char* mailbox(u64 memory, u32 block, u32 message, u32 from) {
    const u32 box = ((message & 1) * RANKS + from) * BLOCKS + block;
    return (char*)memory + 4 * BLOCKS + 16ull * BOX_WORDS * box;
}

// ---- kernel
extern "C" __global__ void __launch_bounds__(THREADS) NAME(
    const T* x, const u64* memory, const void* after, T* out, const int count) {
    const u32 words = (count + PER_WORD - 1) / PER_WORD, part = (words + SUM_BLOCKS - 1) / SUM_BLOCKS;
    const u32 block = SUM_BLOCK, thread_here = SUM_THREAD;
    const u32 first = block * part, end = first + part < words ? first + part : words;
    const bool aligned = ((u64)x & 7) == 0;
    volatile u32* const number = (volatile u32*)memory[RANK] + block;
    u32 message = *number;
    for (u32 begin = first; begin < end; begin += PIECE) {
        message += message == 0xffffffffu ? 3 : 1;  // 0 is what memory begins with
        Word own[WORDS];
#pragma unroll
        for (u32 i = 0; i < WORDS; i++) {
            const u32 at = i * THREADS + thread_here;
            if (begin + at < end) {
                own[i] = read_word(x, begin + at, count, aligned);
#pragma unroll
                for (u32 peer = 1; peer < RANKS; peer++) {
                    char* to = mailbox(memory[(RANK + peer) % RANKS], block, message, RANK) + 16 * at;
                    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(own[i].low),
                                 "r"(message), "r"(own[i].high), "r"(message)
                                 : "memory");
                }
            }
        }
        float sum[WORDS][PER_WORD];
#pragma unroll
        for (u32 rank = 0; rank < RANKS; rank++) {
            Word theirs[WORDS];
            const char* from = mailbox(memory[RANK], block, message, rank);
            u64 late = 0;
            for (u32 spins = 1; rank != RANK; spins++) {
                bool here = true;
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) {
                    const u32 at = i * THREADS + thread_here;
                    if (begin + at < end) {
                        u32 low, high;
                        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                                     : "=r"(theirs[i].low), "=r"(low), "=r"(theirs[i].high), "=r"(high)
                                     : "l"(from + 16 * at)
                                     : "memory");
                        here = here && low == message && high == message;
                    }
                }
                if (here) {
                    break;
                }
                if (spins % 4096 == 0) {
                    // A rank that never comes is an error, and no reason to hang.
                    late = late == 0 ? now() + TIMEOUT_NS : late;
                    if (now() > late) {
                        __trap();
                    }
                }
            }
#pragma unroll
            for (u32 i = 0; i < WORDS; i++) {
                Numbers numbers;
                numbers.word = rank == RANK ? own[i] : theirs[i];
#pragma unroll
                for (u32 j = 0; j < PER_WORD; j++) {
                    sum[i][j] = rank == 0 ? to_float(numbers.each[j]) : sum[i][j] + to_float(numbers.each[j]);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < WORDS; i++) {
            const u32 at = i * THREADS + thread_here;
            if (begin + at < end) {
                write_word(out, begin + at, count, sum[i]);
            }
        }
        SUM_BARRIER();  // nobody of this block sends the next piece before all have read this one
    }
    if (thread_here == 0 && first < end) {
        *number = message;
    }
}
