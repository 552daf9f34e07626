/* Types shared by the two halves of the sim host.
 *
 * sim_checks.c   linked into every kernel library: the checks of memory accesses
 *
 * and one library per process:
 *
 * sim_runtime.c  fibers, simdgroup operations, barriers: how a threadgroup runs
 * sim_workers.c  workers: how a grid runs
 * sim_pages.c    who wrote device memory
 *
 * sim_layout.h says where a worker keeps what.
 */
#ifndef MLXR_SIM_RUNTIME_H
#define MLXR_SIM_RUNTIME_H

#include <stdint.h>

#include "sim_layout.h"

#define SIM_MAX_SIMDGROUPS (SIM_MAX_THREADS / SIM_LANES)

/* Faults; the order is known to runtime/hosts/sim/faults.py. */
enum {
    SIM_OK,
    SIM_OUT_OF_BOUNDS,
    SIM_READ_ONLY,
    SIM_MISALIGNED,
    SIM_UNINITIALISED,
    SIM_RACE,
    SIM_CONFLICT,
    SIM_THREADGROUP_FULL,
    SIM_DIVERGENT,
    SIM_THREAD_RETURNED,
    SIM_LANE,
    SIM_INDEX,
    SIM_DIVISION,
    SIM_OVERLAP,
    SIM_PRIVATE,
};

/* What an address belongs to. */
enum { SIM_IN_NOTHING, SIM_IN_DEVICE, SIM_IN_THREADGROUP };

/* Kinds of synchronising operations; the order is known to metal_on_cpu_simd.h and runtime/hosts/sim/faults.py. */
enum {
    SIM_SUM_F32,
    SIM_PRODUCT_F32,
    SIM_MAX_F32,
    SIM_MIN_F32,
    SIM_SUM_I32,
    SIM_PRODUCT_I32,
    SIM_MAX_I32,
    SIM_MIN_I32,
    SIM_MAX_U32,
    SIM_MIN_U32,
    SIM_AND,
    SIM_OR,
    SIM_XOR,
    SIM_PREFIX_EXCLUSIVE_SUM_F32,
    SIM_PREFIX_INCLUSIVE_SUM_F32,
    SIM_PREFIX_EXCLUSIVE_SUM_I32,
    SIM_PREFIX_INCLUSIVE_SUM_I32,
    SIM_BALLOT,
    SIM_SHUFFLE,
    SIM_SHUFFLE_XOR,
    SIM_SHUFFLE_UP,
    SIM_SHUFFLE_DOWN,
    SIM_BROADCAST,
    SIM_SIMDGROUP_BARRIER,
    SIM_THREADGROUP_BARRIER,
};

/* mem_flags of Metal. */
enum { SIM_MEM_DEVICE = 1, SIM_MEM_THREADGROUP = 2 };

/* What a buffer may be used for: bits of SimBuffer.use. */
enum {
    SIM_WRITABLE = 1,
    SIM_WRITTEN = 2, /* the kernel's text has a way to write it: reads of what another thread writes are races */
};

typedef struct {
    uintptr_t address;
    uint64_t size;
    uint64_t use;
} SimBuffer;

typedef struct {
    uint32_t kind;
    uint32_t is_write;
    uint32_t object_kind; /* SIM_IN_... */
    uint32_t object;      /* buffer or threadgroup array number */
    int64_t offset;       /* bytes from the object's start; an index for SIM_INDEX */
    uint64_t object_size; /* bytes */
    uint32_t size;        /* bytes of the access */
    uint32_t thread;      /* linear index in the threadgroup */
    uint32_t other;       /* the other thread of a race or divergence */
    uint32_t other_wrote;
    uint32_t operation; /* SIM_... synchronising operation */
    uint32_t other_operation;
    uint32_t site; /* line << 12 | column, 0 when unknown */
    uint32_t other_site;
    uint32_t group[3];
    uint32_t other_group; /* number of the other thread's threadgroup */
    char name[64];
} SimFault;

/* Values a kernel may ask for, of a whole threadgroup; MlxrSimGroup of metal_on_cpu_simd.h. */
typedef struct {
    uint32_t group[3];
    uint32_t groups[3];
    uint32_t threads[3];
    uint32_t count; /* threads of the threadgroup */
} SimGroup;

typedef void (*SimEntry)(const uint64_t *buffers, const SimGroup *group, uint32_t thread);

typedef struct {
    SimEntry entry;
    const SimBuffer *buffers;
    uint64_t num_buffers;
    uint32_t groups[3];
    uint32_t threads[3];
    uint64_t seed;
    uint64_t num_workers;
    uint64_t num_sites; /* sites of this kernel */
    uint64_t threadgroup_limit; /* bytes of threadgroup memory that it may have */
} SimLaunch;

/* Who last wrote and read a granule of threadgroup memory. Both words are events: epoch << 37 | order << 12 |
 * many << 10 | thread, where epoch counts threadgroup barriers, order counts simdgroup barriers since, and many says
 * that several lanes of one simdgroup (1) or several simdgroups (2) read. */
typedef struct {
    uint64_t writer;
    uint64_t reader;
} SimShadow;

/* The last write of a byte of device memory: launch << 48 | threadgroup << 21 | thread << 11 | epoch, where epoch
 * counts the barriers of this threadgroup that order device memory. Accesses of two bytes and more use only the words of
 * even bytes: what goes unseen is a conflict of such an access with one of an odd byte alone. */
#define SIM_PAGE_SIZE ((uintptr_t)1 << 16)
#define SIM_WRITE_LAUNCH_SHIFT 48
#define SIM_WRITE_GROUP_SHIFT 21
#define SIM_WRITE_THREAD_SHIFT 11
#define SIM_WRITE_EPOCHS 2047u

typedef struct {
    uintptr_t number; /* of the page, plus one */
    uint64_t *shadow;
} SimPage;

#define SIM_EPOCH_SHIFT 37
#define SIM_ORDER_SHIFT 12
#define SIM_MANY_SHIFT 10
#define SIM_MANY_LANES ((uint64_t)1 << SIM_MANY_SHIFT)
#define SIM_MANY_SIMDGROUPS ((uint64_t)2 << SIM_MANY_SHIFT)
#define SIM_MANY_MASK ((uint64_t)3 << SIM_MANY_SHIFT)

/* The object that a place in the kernel touched last: an access there needs no other check if its address, less the
 * base and rotated right by the alignment asked for, is at most the limit. */
typedef struct {
    uintptr_t base;
    uintptr_t limit;
} SimSite;

typedef struct {
    uintptr_t base;
    uintptr_t size;
    SimShadow *shadow;
    uint32_t shift; /* log2 of the granule in bytes */
    uint32_t site;
    const char *name;
} SimArray;

typedef struct {
    uint64_t event; /* epoch and order of now; a thread adds its index */
    uint32_t arrived;
    uint32_t returned;
    uint32_t lanes;
    uint32_t first_thread; /* in order of index */
    uint32_t first;        /* to start */
    uint32_t operation;
    uint32_t site;
    uint32_t starter; /* the first lane that arrived, or the last that returned */
    uint32_t argument; /* the starter's */
    uint32_t resume;  /* thread to switch to */
    uint32_t started; /* lanes that have started */
    uint32_t parity;
    uint32_t device_ordered; /* a simdgroup barrier has ordered its device memory in this epoch */
    uint32_t value[2][SIM_LANES];
    uint32_t result[2][SIM_LANES];
    uint8_t next[SIM_LANES];
} SimSimdgroup;

typedef struct SimWorker {
    uint8_t array_of_site[SIM_MAX_SITES];
    SimArray arrays[SIM_MAX_ARRAYS];
    uint32_t num_arrays;
    uint32_t arena_bytes; /* bytes the kernel declared */
    uintptr_t arena_next; /* next free address */
    uint64_t epoch;
    uint64_t first_epoch; /* of this threadgroup */
    uint64_t device_event; /* the word of a write now, without its thread; 0 when writes go untracked */
    SimPage page_of_site[SIM_MAX_SITES];
    const SimLaunch *launch;
    uint64_t addresses[SIM_MAX_BUFFERS];
    SimGroup group;
    uint32_t num_simdgroups;
    uint32_t arrived_simdgroups;
    uint32_t finished_simdgroups;
    uint32_t first_simdgroup;
    uint32_t barrier_site;
    uint32_t barrier_thread;
    uint8_t next_simdgroup[SIM_MAX_SIMDGROUPS];
    SimSimdgroup simdgroups[SIM_MAX_SIMDGROUPS];
    void *stack_of[SIM_MAX_THREADS]; /* saved stack pointers of threads that have started */
    void *main_stack;
    SimFault fault;
    /* The runtime's half, called by the kernel's half. */
    uint32_t (*synchronise)(uint32_t operation, uint32_t site, uint32_t value, uint32_t argument);
    void *(*threadgroup_array)(uint32_t site, uint32_t size, uint32_t count, uint32_t align, const char *name);
    uint64_t *(*page)(uintptr_t number) __attribute__((preserve_all));
    void (*leave)(struct SimWorker *worker) __attribute__((noreturn));
} SimWorker;

/* sim_runtime.c */
uint64_t sim_random(uint64_t *state);
void sim_prepare(SimWorker *worker, const SimLaunch *launch, uint64_t worker_id);
void sim_run_group(SimWorker *worker, uint64_t number, uint64_t launch_number);
uint32_t sim_synchronise(uint32_t operation, uint32_t site, uint32_t value, uint32_t argument);
void *sim_threadgroup_array(uint32_t site, uint32_t size, uint32_t count, uint32_t align, const char *name);
void sim_leave(SimWorker *worker) __attribute__((noreturn));
/* sim_pages.c */
__attribute__((preserve_all)) uint64_t *sim_page(uintptr_t number);
void sim_clear_pages(void);

static inline uintptr_t sim_stack_pointer(void) {
    uintptr_t pointer;
    SIM_STACK_POINTER(pointer);
    return pointer;
}

static inline SimWorker *sim_worker(void) { return (SimWorker *)(sim_stack_pointer() & ~(SIM_REGION_SIZE - 1)); }

static inline SimSite *sim_sites(SimWorker *worker) { return (SimSite *)((uintptr_t)worker + SIM_SITES_OFFSET); }

static inline uint32_t sim_thread(void) {
    return (uint32_t)(sim_stack_pointer() >> SIM_STACK_BITS) & (SIM_MAX_THREADS - 1);
}

#endif
