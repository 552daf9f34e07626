/* Numbers that the Metal prelude, the checks and the runtime of the sim host agree on. Preprocessor only: this file is
 * read as C and as C++ for OpenCL.
 *
 * A worker is one operating-system thread. It owns one region of SIM_REGION_SIZE bytes, aligned to that size, so that
 * code on any fiber finds its worker and its own thread index from the stack pointer alone:
 *
 *   0                    SimWorker
 *   SIM_SITES_OFFSET     one SimSite per place in the kernel that accesses memory
 *   SIM_ARENA_OFFSET     threadgroup memory, SIM_ARENA_SIZE bytes (32 KiB at most are handed out, 226 KiB to kernels
 *                        that copy ahead, with gaps between)
 *   SIM_SHADOW_OFFSET    one SimShadow per granule of threadgroup memory
 *   SIM_STACKS_OFFSET    SIM_MAX_THREADS stacks of SIM_STACK_SIZE bytes; build.py refuses kernels that could need more than
 *                        half of one, so a guard page is a second line of defence (sim_workers.c says who has them)
 */
#ifndef MLXR_SIM_LAYOUT_H
#define MLXR_SIM_LAYOUT_H

#define SIM_LANES 32u
#define SIM_MAX_THREADS 1024u
#define SIM_MAX_BUFFERS 31u
#define SIM_MAX_ARRAYS 64u
#define SIM_MAX_SITES 8192u
#define SIM_THREADGROUP_LIMIT 32768u
#define SIM_COPIES_LIMIT 231424u

#define SIM_STACK_BITS 17
#define SIM_STACK_SIZE (1ul << SIM_STACK_BITS)
#define SIM_REGION_SIZE (1ul << 28)
#define SIM_SITES_OFFSET (1ul << 19)
#define SIM_ARENA_OFFSET (1ul << 20)
#define SIM_ARENA_SIZE (1ul << 19)
#define SIM_ARENA_GAP 1024u
#define SIM_SHADOW_OFFSET (1ul << 21)
#define SIM_STACKS_OFFSET (1ul << 27)

/* The stack pointer of the running fiber. */
#if defined(__x86_64__)
#define SIM_STACK_POINTER(variable) __asm__("movq %%rsp, %0" : "=r"(variable))
#else
#define SIM_STACK_POINTER(variable) __asm__("mov %0, sp" : "=r"(variable))
#endif

/* An access as one number: bytes | log2 of the alignment asked for << 8 | write << 16. */
#define SIM_ACCESS(bytes, align_bits, is_write) ((bytes) | (align_bits) << 8 | (is_write) << 16)
#define SIM_ACCESS_BYTES(access) ((access) & 255u)
#define SIM_ACCESS_ALIGN_BITS(access) ((access) >> 8 & 255u)
#define SIM_ACCESS_IS_WRITE(access) ((access) >> 16)

#endif
