/* How sim runs a threadgroup: fibers, simdgroup operations, barriers.
 *
 * Every thread of a threadgroup is a fiber with a stack of its own. The lanes of a simdgroup run in a ring: a lane
 * runs until it arrives at a synchronising operation (a simdgroup operation or a barrier), then the next lane runs.
 * The lane that completes the operation computes the results and goes on at once, so it is the first at the next
 * operation, and the ring order never breaks: one switch per lane and operation, and no search for work. Results are
 * double-buffered by parity: an operation can complete only after every lane has fetched the result of the one before.
 * A threadgroup barrier completes per simdgroup first and then moves on to the next simdgroup, in a ring as well.
 *
 * Every arrival is compared with the first arrival of its simdgroup (operation and call site), so divergence is found
 * when it happens and nothing can hang. Ring orders are drawn anew for each launch from its seed.
 */
#include "sim_runtime.h"

#include <string.h>

_Static_assert(sizeof(SimWorker) <= SIM_SITES_OFFSET, "sites lie behind the worker");
_Static_assert(SIM_SITES_OFFSET + SIM_MAX_SITES * sizeof(SimSite) <= SIM_ARENA_OFFSET, "then the arena");
_Static_assert(SIM_COPIES_LIMIT + (SIM_MAX_ARRAYS + 1) * (SIM_ARENA_GAP + 16) <= SIM_ARENA_SIZE, "arrays fit");
_Static_assert(SIM_SHADOW_OFFSET + SIM_ARENA_SIZE * sizeof(SimShadow) <= SIM_STACKS_OFFSET, "stacks lie last");

#ifdef __APPLE__
#define SYMBOL(name) "_" name
#else
#define SYMBOL(name) name
#endif

/* Where to go on: a stopped thread's saved stack pointer, or the end of the empty stack of one that has not started. */
typedef struct {
    void *stack;
    uint64_t fresh;
} Target;

/* sim_switch(save, stack, fresh): keeps the callee-saved registers on this stack, saves its pointer and goes on
 * elsewhere. A fresh thread runs sim_run_thread, which returns the next target when the kernel function has returned.
 *
 * A processor predicts returns from a stack of its own. All threads stop inside sim_switch, called from one place, so
 * a return into a stopped thread finds there what it expects; a fresh thread is entered by a jump, and a finished one
 * left after a balanced call, so that neither disturbs it. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".balign 16\n" SYMBOL("sim_switch") ":\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "1:\n"
        "  movq %rsi, %rsp\n"
        "  testl %edx, %edx\n"
        "  jne 2f\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        "2:\n"
        "  xorl %ebp, %ebp\n"
        "  call " SYMBOL("sim_run_thread") "\n"
        "  movq %rax, %rsi\n"
        "  jmp 1b\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".balign 16\n" SYMBOL("sim_switch") ":\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "1:\n"
        "  mov sp, x1\n"
        "  cbnz w2, 2f\n"
        "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        "2:\n"
        "  mov x29, #0\n"
        "  bl " SYMBOL("sim_run_thread") "\n"
        "  mov x2, x1\n"
        "  mov x1, x0\n"
        "  b 1b\n");
#else
#error "sim runs on x86-64 and aarch64"
#endif
extern void sim_switch(void **save, void *stack, uint64_t fresh);
Target sim_run_thread(void) __attribute__((used));

uint64_t sim_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- leaving a fiber ---- */

__attribute__((noreturn)) void sim_leave(SimWorker *worker) {
    void *unused;
    sim_switch(&unused, worker->main_stack, 0);
    __builtin_unreachable();
}

static __attribute__((noreturn, cold, noinline)) void fail(SimWorker *worker, const SimFault *fault) {
    worker->fault = *fault;
    worker->fault.thread = sim_thread();
    sim_leave(worker);
}

/* Stacks a power of two apart would share the same few cache sets; these are staggered. */
static void *top_of_stack(SimWorker *worker, uint32_t thread) {
    uintptr_t end = (uintptr_t)worker + SIM_STACKS_OFFSET + ((uintptr_t)(thread + 1) << SIM_STACK_BITS);
    return (void *)(end - (uintptr_t)(thread % 64 + 1) * 192);
}

static inline Target target(SimWorker *worker, SimSimdgroup *simdgroup, uint32_t thread) {
    if (simdgroup->started == simdgroup->lanes) return (Target){worker->stack_of[thread], 0};
    simdgroup->started++;
    return (Target){top_of_stack(worker, thread), 1};
}

/* A simdgroup whose lanes have not all started is in its first round: the lane after the current one is a new one. */
static inline Target next_lane(SimWorker *worker, SimSimdgroup *simdgroup, uint32_t thread) {
    return target(worker, simdgroup, simdgroup->first_thread + simdgroup->next[thread % SIM_LANES]);
}

/* A simdgroup that is left waits at a barrier, where all of its lanes have started, or has not started at all. */
static inline Target next_simdgroup(SimWorker *worker, uint32_t thread) {
    SimSimdgroup *simdgroup = &worker->simdgroups[worker->next_simdgroup[thread / SIM_LANES]];
    return target(worker, simdgroup, simdgroup->resume);
}

/* ---- simdgroup operations ---- */

static float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Metal's max and min return the other operand when one is a NaN. */
static float max_float(float a, float b) { return a != a || b > a ? b : a; }
static float min_float(float a, float b) { return a != a || b < a ? b : a; }

static uint32_t combine(uint32_t operation, uint32_t a, uint32_t b) {
    switch (operation) {
    case SIM_SUM_F32: case SIM_PREFIX_EXCLUSIVE_SUM_F32: case SIM_PREFIX_INCLUSIVE_SUM_F32:
        return as_bits(as_float(a) + as_float(b));
    case SIM_PRODUCT_F32: return as_bits(as_float(a) * as_float(b));
    case SIM_MAX_F32: return as_bits(max_float(as_float(a), as_float(b)));
    case SIM_MIN_F32: return as_bits(min_float(as_float(a), as_float(b)));
    case SIM_PRODUCT_I32: return a * b;
    case SIM_MAX_I32: return (int32_t)a > (int32_t)b ? a : b;
    case SIM_MIN_I32: return (int32_t)a < (int32_t)b ? a : b;
    case SIM_MAX_U32: return a > b ? a : b;
    case SIM_MIN_U32: return a < b ? a : b;
    case SIM_AND: return a & b;
    case SIM_OR: return a | b;
    case SIM_XOR: return a ^ b;
    default: return a + b;
    }
}

/* Sums as a GPU does: halves folded onto each other, for any number of lanes. */
#define FOLD(expression)                                                                           \
    do {                                                                                           \
        for (uint32_t half = SIM_LANES / 2; half > 0; half /= 2)                                   \
            for (uint32_t i = 0; i < half && i + half < lanes; i++) {                              \
                uint32_t a = value[i], b = value[i + half];                                        \
                value[i] = (expression);                                                           \
            }                                                                                      \
        for (uint32_t i = 0; i < lanes; i++) result[i] = value[0];                                 \
    } while (0)

static void compute(SimSimdgroup *simdgroup, uint32_t operation, uint32_t *value, uint32_t *result) {
    uint32_t lanes = simdgroup->lanes;
    if (operation >= SIM_SHUFFLE) return;
    switch (operation) {
    case SIM_SUM_F32: FOLD(as_bits(as_float(a) + as_float(b))); break;
    case SIM_MAX_F32: FOLD(as_bits(max_float(as_float(a), as_float(b)))); break;
    case SIM_BALLOT: {
        uint32_t ballot = 0;
        for (uint32_t i = 0; i < lanes; i++) ballot |= (uint32_t)(value[i] != 0) << i;
        for (uint32_t i = 0; i < lanes; i++) result[i] = ballot;
        break;
    }
    case SIM_PREFIX_EXCLUSIVE_SUM_F32: case SIM_PREFIX_EXCLUSIVE_SUM_I32: {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < lanes; i++) {
            result[i] = sum;
            sum = combine(operation, sum, value[i]);
        }
        break;
    }
    case SIM_PREFIX_INCLUSIVE_SUM_F32: case SIM_PREFIX_INCLUSIVE_SUM_I32: {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < lanes; i++) result[i] = sum = combine(operation, sum, value[i]);
        break;
    }
    default: FOLD(combine(operation, a, b)); break;
    }
}

static __attribute__((noreturn, cold, noinline)) void fail_divergent(SimWorker *worker, uint32_t kind,
                                                                     uint32_t operation, uint32_t site,
                                                                     uint32_t other, uint32_t other_operation,
                                                                     uint32_t other_site) {
    SimFault fault = {.kind = kind, .operation = operation, .site = site, .other = other,
                      .other_operation = other_operation, .other_site = other_site};
    fail(worker, &fault);
}

/* Starts the epoch after a threadgroup barrier: everything before is ordered before everything after. */
static void start_epoch(SimWorker *worker) {
    uint64_t event = ++worker->epoch << SIM_EPOCH_SHIFT;
    for (uint32_t i = 0; i < worker->num_simdgroups; i++) worker->simdgroups[i].event = event;
}

static void start_device_epoch(SimWorker *worker) {
    if (worker->device_event != 0 && (worker->device_event & SIM_WRITE_EPOCHS) != SIM_WRITE_EPOCHS) {
        worker->device_event++;
    }
    for (uint32_t i = 0; i < worker->num_simdgroups; i++) worker->simdgroups[i].device_ordered = 0;
}

/* All lanes of this simdgroup have arrived at a threadgroup barrier; the caller is the last. Returns where to go on, or
 * nowhere when the barrier is complete. */
static Target threadgroup_barrier(SimWorker *worker, SimSimdgroup *simdgroup, uint32_t site, uint32_t flags) {
    uint32_t thread = sim_thread();
    if (worker->finished_simdgroups != 0) {
        fail_divergent(worker, SIM_THREAD_RETURNED, SIM_THREADGROUP_BARRIER, site, worker->barrier_thread, 0, 0);
    }
    if (worker->arrived_simdgroups == 0) {
        worker->barrier_site = site;
        worker->barrier_thread = thread;
    } else if (worker->barrier_site != site) {
        fail_divergent(worker, SIM_DIVERGENT, SIM_THREADGROUP_BARRIER, site, worker->barrier_thread,
                       SIM_THREADGROUP_BARRIER, worker->barrier_site);
    }
    if (++worker->arrived_simdgroups == worker->num_simdgroups) {
        worker->arrived_simdgroups = 0;
        if (flags & SIM_MEM_THREADGROUP) start_epoch(worker);
        if (flags & SIM_MEM_DEVICE) start_device_epoch(worker);
        return (Target){0, 0};
    }
    simdgroup->resume = thread;
    return next_simdgroup(worker, thread);
}

/* The value that a shuffle brings to a lane. */
static uint32_t moved(const SimSimdgroup *simdgroup, uint32_t operation, const uint32_t *value, uint32_t lane,
                      uint32_t argument) {
    uint32_t from = argument;
    if (operation == SIM_SHUFFLE_XOR) from = lane ^ argument;
    /* Up and down leave the lanes at the edge as they are. */
    if (operation == SIM_SHUFFLE_UP) from = lane >= argument ? lane - argument : lane;
    if (operation == SIM_SHUFFLE_DOWN) from = lane + argument < simdgroup->lanes ? lane + argument : lane;
    /* A lane that does not exist has no value; a NaN in every width shows when it is used. */
    return from < simdgroup->lanes ? value[from] : 0xffffffffu;
}

uint32_t sim_synchronise(uint32_t operation, uint32_t site, uint32_t value, uint32_t argument) {
    SimWorker *worker = sim_worker();
    uint32_t thread = sim_thread(), lane = thread % SIM_LANES;
    SimSimdgroup *simdgroup = &worker->simdgroups[thread / SIM_LANES];
    uint32_t parity = simdgroup->parity;
    if (__builtin_expect(simdgroup->arrived == 0, 0)) {
        if (simdgroup->returned != 0) {
            fail_divergent(worker, SIM_THREAD_RETURNED, operation, site, simdgroup->starter, 0, 0);
        }
        simdgroup->operation = operation;
        simdgroup->site = site;
        simdgroup->starter = thread;
        simdgroup->argument = argument;
    } else if (__builtin_expect(simdgroup->operation != operation || simdgroup->site != site, 0)) {
        fail_divergent(worker, SIM_DIVERGENT, operation, site, simdgroup->starter, simdgroup->operation,
                       simdgroup->site);
    }
    if (__builtin_expect(operation >= SIM_SHUFFLE_UP && operation <= SIM_BROADCAST, 0)) {
        if (argument != simdgroup->argument || (operation == SIM_BROADCAST && argument >= simdgroup->lanes)) {
            fail_divergent(worker, SIM_LANE, operation, site, simdgroup->starter, argument, simdgroup->argument);
        }
    }
    simdgroup->value[parity][lane] = value;
    Target next = {0, 0};
    if (++simdgroup->arrived != simdgroup->lanes) {
        next = next_lane(worker, simdgroup, thread);
    } else {
        simdgroup->arrived = 0;
        simdgroup->parity = parity ^ 1;
        compute(simdgroup, operation, simdgroup->value[parity], simdgroup->result[parity]);
        if (operation == SIM_THREADGROUP_BARRIER) {
            next = threadgroup_barrier(worker, simdgroup, site, value);
        } else if (operation == SIM_SIMDGROUP_BARRIER) {
            if (value & SIM_MEM_THREADGROUP) simdgroup->event += (uint64_t)1 << SIM_ORDER_SHIFT;
            if (value & SIM_MEM_DEVICE) simdgroup->device_ordered = 1;
        }
    }
    if (next.stack != 0) sim_switch(&worker->stack_of[thread], next.stack, next.fresh);
    if (operation < SIM_SHUFFLE) return simdgroup->result[parity][lane];
    return operation <= SIM_BROADCAST ? moved(simdgroup, operation, simdgroup->value[parity], lane, argument) : 0;
}

/* ---- threads ---- */

/* The kernel function of this thread has returned. */
static Target finish_thread(SimWorker *worker) {
    uint32_t thread = sim_thread();
    SimSimdgroup *simdgroup = &worker->simdgroups[thread / SIM_LANES];
    if (simdgroup->arrived != 0) {
        SimFault fault = {.kind = SIM_THREAD_RETURNED, .operation = simdgroup->operation, .site = simdgroup->site,
                          .other = thread};
        fail(worker, &fault);
    }
    simdgroup->starter = thread;
    if (++simdgroup->returned != simdgroup->lanes) return next_lane(worker, simdgroup, thread);
    if (worker->arrived_simdgroups != 0) {
        SimFault fault = {.kind = SIM_THREAD_RETURNED, .operation = SIM_THREADGROUP_BARRIER,
                          .site = worker->barrier_site, .other = thread};
        fail(worker, &fault);
    }
    worker->barrier_thread = thread;
    if (++worker->finished_simdgroups != worker->num_simdgroups) return next_simdgroup(worker, thread);
    return (Target){worker->main_stack, 0};
}

Target sim_run_thread(void) {
    SimWorker *worker = sim_worker();
    worker->launch->entry(worker->addresses, &worker->group, sim_thread());
    return finish_thread(worker);
}

void *sim_threadgroup_array(uint32_t site, uint32_t size, uint32_t count, uint32_t align, const char *name) {
    SimWorker *worker = sim_worker();
    for (uint32_t i = 0; i < worker->num_arrays; i++) {
        const SimArray *array = &worker->arrays[i];
        if (array->site == site && array->size == (uint64_t)size * count) return (void *)array->base;
    }
    uint64_t bytes = (uint64_t)size * count;
    if (align < 16) align = 16;
    uint64_t start = (worker->arena_bytes + (uint64_t)align - 1) / align * align;
    if (worker->num_arrays == SIM_MAX_ARRAYS || start + bytes > worker->launch->threadgroup_limit) {
        SimFault fault = {.kind = SIM_THREADGROUP_FULL, .object_kind = SIM_IN_THREADGROUP, .site = site,
                          .offset = (int64_t)start, .object_size = bytes,
                          .size = (uint32_t)worker->launch->threadgroup_limit};
        strncpy(fault.name, name, sizeof fault.name - 1);
        fail(worker, &fault);
    }
    SimArray *array = &worker->arrays[worker->num_arrays++];
    array->base = (worker->arena_next + align - 1) / align * align;
    array->size = bytes;
    array->shift = size % 4 == 0 ? 2 : size % 2 == 0 ? 1 : 0;
    uintptr_t offset = array->base - ((uintptr_t)worker + SIM_ARENA_OFFSET);
    array->shadow = (SimShadow *)((uintptr_t)worker + SIM_SHADOW_OFFSET) + offset;
    array->site = site;
    array->name = name;
    worker->arena_bytes = (uint32_t)(start + bytes);
    worker->arena_next = array->base + bytes + SIM_ARENA_GAP;
    return (void *)array->base;
}

/* ---- threadgroups ---- */

void sim_run_group(SimWorker *worker, uint64_t number, uint64_t launch_number) {
    const SimLaunch *launch = worker->launch;
    worker->group.group[0] = (uint32_t)(number % launch->groups[0]);
    worker->group.group[1] = (uint32_t)(number / launch->groups[0] % launch->groups[1]);
    worker->group.group[2] = (uint32_t)(number / launch->groups[0] / launch->groups[1]);
    worker->num_arrays = 0;
    worker->arena_bytes = 0;
    worker->arena_next = (uintptr_t)worker + SIM_ARENA_OFFSET + SIM_ARENA_GAP;
    worker->arrived_simdgroups = 0;
    worker->finished_simdgroups = 0;
    if (worker->epoch >> 26) {
        memset((char *)worker + SIM_SHADOW_OFFSET, 0, SIM_ARENA_SIZE * sizeof(SimShadow));
        worker->epoch = 0;
    }
    start_epoch(worker);
    worker->first_epoch = worker->epoch;
    worker->device_event = number >> 27 ? 0 : launch_number << SIM_WRITE_LAUNCH_SHIFT | number << SIM_WRITE_GROUP_SHIFT;
    for (uint32_t i = 0; i < worker->num_simdgroups; i++) {
        SimSimdgroup *simdgroup = &worker->simdgroups[i];
        simdgroup->arrived = 0;
        simdgroup->returned = 0;
        simdgroup->parity = 0;
        simdgroup->device_ordered = 0;
        simdgroup->started = 0;
        simdgroup->resume = simdgroup->first;
    }
    SimSimdgroup *begin = &worker->simdgroups[worker->first_simdgroup];
    Target first = target(worker, begin, begin->resume);
    sim_switch(&worker->main_stack, first.stack, first.fresh);
}

/* A ring over 0 .. count-1 in random order; returns where it begins. */
static uint32_t draw_ring(uint8_t *next, uint32_t count, uint64_t *random) {
    uint8_t order[SIM_LANES];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = (uint32_t)(sim_random(random) % (i + 1));
        order[i] = order[j];
        order[j] = (uint8_t)i;
    }
    for (uint32_t i = 0; i < count; i++) next[order[i]] = order[(i + 1) % count];
    return order[0];
}

void sim_prepare(SimWorker *worker, const SimLaunch *launch, uint64_t worker_id) {
    uint64_t random = launch->seed * 0x2545f4914f6cdd1du + worker_id;
    worker->launch = launch;
    worker->fault.kind = SIM_OK;
    memcpy(worker->group.groups, launch->groups, sizeof launch->groups);
    memcpy(worker->group.threads, launch->threads, sizeof launch->threads);
    worker->group.count = launch->threads[0] * launch->threads[1] * launch->threads[2];
    worker->num_simdgroups = (worker->group.count + SIM_LANES - 1) / SIM_LANES;
    for (uint64_t i = 0; i < launch->num_buffers; i++) worker->addresses[i] = launch->buffers[i].address;
    SimSite *sites = sim_sites(worker);
    /* No address of a program lies in this range. */
    for (uint64_t i = 0; i < launch->num_sites; i++) sites[i] = (SimSite){(uintptr_t)1 << 63, 0};
    memset(worker->array_of_site, 0, launch->num_sites);
    worker->first_simdgroup = draw_ring(worker->next_simdgroup, worker->num_simdgroups, &random);
    for (uint32_t i = 0; i < worker->num_simdgroups; i++) {
        SimSimdgroup *simdgroup = &worker->simdgroups[i];
        uint32_t left = worker->group.count - i * SIM_LANES;
        simdgroup->first_thread = i * SIM_LANES;
        simdgroup->lanes = left < SIM_LANES ? left : SIM_LANES;
        simdgroup->first = simdgroup->first_thread + draw_ring(simdgroup->next, simdgroup->lanes, &random);
    }
}
