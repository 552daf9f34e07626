/* The half of sim that is linked into every kernel library: what a memory access must satisfy.
 *
 * clang's -fsanitize=thread calls __tsan_readN or __tsan_writeN before each load and store that is not to a private
 * variable (the real ThreadSanitizer is not involved). The build turns these calls into calls of mlxr_check_..., whose
 * inline half stands in metal_on_cpu_simd.h: it compares the address with the object that this place in the kernel touched
 * last. What it cannot pass comes here. An address must lie in a bound device buffer (writable, for a write), in a
 * declared threadgroup array (written before it is read, no other thread touching it without a barrier between), in
 * the kernel's constants or in the thread's own private memory. On a fault the fiber is left at once, so the bad
 * access never happens.
 *
 * Private arrays are checked by clang itself (-fsanitize=array-bounds and local-bounds), which calls the functions at
 * the end of this file. What those do not see: a private pointer in a function that was not inlined, if it stays within
 * the thread's stack. Conflicts in device memory are told apart by bytes for accesses of one byte and by pairs of bytes
 * for wider ones (sim_runtime.h).
 *
 * The functions on the way are preserve_all and this file is compiled without vector registers, so that a kernel keeps
 * its own across a check.
 */
#include "sim_runtime.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORT __attribute__((visibility("hidden")))
#define INLINE inline __attribute__((always_inline))
#define PRESERVE __attribute__((preserve_all, noinline))
#define FAIL __attribute__((preserve_all, noinline, noreturn, cold))

/* The kernel library's own memory, where its constants are. */
#ifdef __APPLE__
extern const char image_start[] __asm("section$start$__TEXT$__const") EXPORT;
extern const char image_end[] __asm("section$end$__TEXT$__const") EXPORT;
#else
extern const char image_start[] __asm("__ehdr_start") EXPORT;
extern const char image_end[] __asm("_end") EXPORT;
#endif

static inline uintptr_t arena(SimWorker *worker) { return (uintptr_t)worker + SIM_ARENA_OFFSET; }

typedef struct {
    uintptr_t address;
    uint64_t bytes;
    uint32_t align_bits;
    uint32_t is_write;
    uint32_t slot; /* number of the place in the kernel; SIM_MAX_SITES when it has none */
    uint32_t site; /* line << 12 | column */
} Access;

static FAIL void fail(uint32_t kind, const SimFault *what) {
    SimWorker *worker = sim_worker();
    worker->fault = *what;
    worker->fault.kind = kind;
    worker->fault.thread = sim_thread();
    worker->leave(worker);
}

static SimFault describe(const Access *access) {
    return (SimFault){.is_write = access->is_write, .size = (uint32_t)access->bytes, .site = access->site};
}

static void describe_array(SimFault *fault, const Access *access, const SimArray *array) {
    fault->object_kind = SIM_IN_THREADGROUP;
    fault->object = (uint32_t)(array - sim_worker()->arrays);
    fault->offset = (int64_t)(access->address - array->base);
    fault->object_size = array->size;
    for (uint32_t i = 0; array->name[i] != 0 && i < sizeof fault->name - 1; i++) fault->name[i] = array->name[i];
}

static void describe_buffer(SimFault *fault, const Access *access, uint32_t number) {
    const SimBuffer *buffer = &sim_worker()->launch->buffers[number];
    fault->object_kind = SIM_IN_DEVICE;
    fault->object = number;
    fault->offset = (int64_t)(access->address - buffer->address);
    fault->object_size = buffer->size;
}

static uintptr_t distance(uintptr_t address, uintptr_t base, uintptr_t size) {
    return address < base ? base - address : address < base + size ? 0 : address - base - size;
}

/* Names the object nearest to the address; none is near a null pointer, wherever the system puts buffers. */
static FAIL void fail_out_of_bounds(const Access *access) {
    SimWorker *worker = sim_worker();
    SimFault fault = describe(access);
    fault.object_kind = SIM_IN_NOTHING;
    fault.offset = (int64_t)access->address;
    uintptr_t nearest = access->address < 65536 ? 0 : (uintptr_t)1 << 30;
    if (access->address - arena(worker) < SIM_ARENA_SIZE) {
        for (uint32_t i = 0; i < worker->num_arrays; i++) {
            const SimArray *array = &worker->arrays[i];
            uintptr_t away = distance(access->address, array->base, array->size);
            if (away >= nearest) continue;
            nearest = away;
            describe_array(&fault, access, array);
        }
    } else {
        for (uint32_t i = 0; i < worker->launch->num_buffers; i++) {
            const SimBuffer *buffer = &worker->launch->buffers[i];
            uintptr_t away = distance(access->address, buffer->address, buffer->size);
            if (away >= nearest) continue;
            nearest = away;
            describe_buffer(&fault, access, i);
        }
    }
    fail(SIM_OUT_OF_BOUNDS, &fault);
}

static FAIL void fail_buffer(uint32_t kind, const Access *access, uint32_t number) {
    SimFault fault = describe(access);
    describe_buffer(&fault, access, number);
    fail(kind, &fault);
}

static FAIL void fail_array(uint32_t kind, const Access *access, const SimArray *array) {
    SimFault fault = describe(access);
    describe_array(&fault, access, array);
    fail(kind, &fault);
}

static FAIL void fail_race(const Access *access, const SimArray *array, uint64_t other, uint32_t other_wrote) {
    SimFault fault = describe(access);
    describe_array(&fault, access, array);
    fault.other = (uint32_t)other & (SIM_MAX_THREADS - 1);
    fault.other_wrote = other_wrote;
    fail(SIM_RACE, &fault);
}

/* ---- threadgroup memory ---- */

static inline int same_simdgroup(uint64_t a, uint64_t b) { return ((a ^ b) & (SIM_MAX_THREADS - 1)) < SIM_LANES; }

/* Whether an earlier event is ordered before now: same thread, or a barrier of both lies between. */
static inline int ordered(uint64_t before, uint64_t now) {
    uint64_t difference = before ^ now;
    if (difference >> SIM_EPOCH_SHIFT || (difference & (SIM_MAX_THREADS - 1)) == 0) return 1;
    return same_simdgroup(before, now) && before >> SIM_ORDER_SHIFT < now >> SIM_ORDER_SHIFT;
}

/* The same for all reads that a shadow's reader stands for. */
static inline int reads_ordered(uint64_t reader, uint64_t now) {
    if ((reader ^ now) >> SIM_EPOCH_SHIFT) return 1;
    switch (reader & SIM_MANY_MASK) {
    case 0: return ordered(reader, now);
    case SIM_MANY_LANES: return same_simdgroup(reader, now) && reader >> SIM_ORDER_SHIFT < now >> SIM_ORDER_SHIFT;
    default: return 0;
    }
}

/* The reader that stands for the reads so far and this one. */
static inline uint64_t add_reader(uint64_t reader, uint64_t now) {
    if ((reader ^ now) >> SIM_EPOCH_SHIFT) return now;
    if ((reader & SIM_MANY_MASK) == SIM_MANY_SIMDGROUPS) return reader;
    if (!same_simdgroup(reader, now)) return now | SIM_MANY_SIMDGROUPS;
    if ((reader ^ now) >> SIM_ORDER_SHIFT) return now;
    return reader == now ? reader : reader | SIM_MANY_LANES;
}

static INLINE const SimArray *find_array(SimWorker *worker, const Access *access) {
    uint8_t *cached = access->slot < SIM_MAX_SITES ? &worker->array_of_site[access->slot] : 0;
    uint32_t number = cached ? *cached : 0;
    for (uint32_t i = 0; i <= worker->num_arrays; i++) {
        const SimArray *array = &worker->arrays[number];
        if (LIKELY(number < worker->num_arrays && access->bytes <= array->size &&
                   access->address - array->base <= array->size - access->bytes)) {
            if (cached) *cached = (uint8_t)number;
            return array;
        }
        number = i;
    }
    fail_out_of_bounds(access);
}

static INLINE void check_threadgroup(SimWorker *worker, const Access *access) {
    const SimArray *array = find_array(worker, access);
    if (UNLIKELY(access->address & ((1u << access->align_bits) - 1))) fail_array(SIM_MISALIGNED, access, array);
    uint32_t thread = sim_thread();
    uint64_t now = worker->simdgroups[thread / SIM_LANES].event | thread;
    uintptr_t offset = access->address - array->base;
    SimShadow *shadow = array->shadow + (offset >> array->shift);
    SimShadow *last = array->shadow + ((offset + access->bytes - 1) >> array->shift);
    /* Neighbours in a granule share its shadow, so of a part only its initialisation can be judged. */
    int whole = access->bytes >> array->shift != 0;
    if (access->is_write) {
        for (; shadow <= last; shadow++) {
            if (UNLIKELY(whole && !ordered(shadow->writer, now))) fail_race(access, array, shadow->writer, 1);
            if (UNLIKELY(whole && !reads_ordered(shadow->reader, now))) fail_race(access, array, shadow->reader, 0);
            shadow->writer = now;
        }
        return;
    }
    for (; shadow <= last; shadow++) {
        if (UNLIKELY(shadow->writer >> SIM_EPOCH_SHIFT < worker->first_epoch)) {
            fail_array(SIM_UNINITIALISED, access, array);
        }
        if (UNLIKELY(whole && !ordered(shadow->writer, now))) fail_race(access, array, shadow->writer, 1);
        shadow->reader = add_reader(shadow->reader, now);
    }
}

/* ---- device memory and everything else ---- */

/* A write to device memory, or a read of a buffer that this kernel writes: no other thread may have written there in
 * this launch, unless a barrier of its threadgroup lies between. That a read came before another thread's write is not
 * recorded; the order of threads is drawn anew for each launch. */
static INLINE void check_conflict(SimWorker *worker, const Access *access, uint32_t number) {
    uint32_t thread = sim_thread();
    uint64_t now = worker->device_event | (uint64_t)thread << SIM_WRITE_THREAD_SHIFT;
    if (worker->device_event == 0) return;
    uintptr_t step = access->bytes == 1 ? 1 : 2;
    uintptr_t first = access->address & -step, end = (access->address + access->bytes) & -step;
    for (uintptr_t byte = first; byte < end; byte += step) {
        uintptr_t page_number = byte / SIM_PAGE_SIZE;
        SimPage *cached = &worker->page_of_site[access->slot % SIM_MAX_SITES];
        if (UNLIKELY(cached->number != page_number + 1)) {
            uint64_t *shadow = worker->page(page_number);
            if (shadow == 0) return;
            *cached = (SimPage){page_number + 1, shadow};
        }
        uint64_t *entry = &cached->shadow[byte % SIM_PAGE_SIZE];
        uint64_t before = access->is_write ? __atomic_exchange_n(entry, now, __ATOMIC_RELAXED)
                                           : __atomic_load_n(entry, __ATOMIC_RELAXED);
        uint64_t difference = before ^ now;
        if (LIKELY(difference >> SIM_WRITE_LAUNCH_SHIFT || difference >> SIM_WRITE_THREAD_SHIFT == 0)) continue;
        uint32_t other = (uint32_t)(before >> SIM_WRITE_THREAD_SHIFT) & (SIM_MAX_THREADS - 1);
        if (difference >> SIM_WRITE_GROUP_SHIFT == 0) {
            if (difference & SIM_WRITE_EPOCHS || (now & SIM_WRITE_EPOCHS) == SIM_WRITE_EPOCHS) continue;
            if ((other ^ thread) < SIM_LANES && worker->simdgroups[thread / SIM_LANES].device_ordered) continue;
        }
        SimFault fault = describe(access);
        describe_buffer(&fault, access, number);
        fault.other = other;
        fault.other_wrote = 1;
        fault.other_group = (uint32_t)(before >> SIM_WRITE_GROUP_SHIFT) & ((1u << 27) - 1);
        fail(SIM_CONFLICT, &fault);
    }
}

static INLINE void check_elsewhere(SimWorker *worker, const Access *access) {
    uintptr_t stack = sim_stack_pointer();
    if ((access->address ^ stack) < SIM_STACK_SIZE && access->address > stack) return;
    uint32_t read_only = SIM_MAX_BUFFERS;
    for (uint32_t i = 0; i < worker->launch->num_buffers; i++) {
        const SimBuffer *buffer = &worker->launch->buffers[i];
        uintptr_t offset = access->address - buffer->address;
        if (access->bytes > buffer->size || offset > buffer->size - access->bytes) continue;
        if (access->is_write && !(buffer->use & SIM_WRITABLE)) {
            read_only = i;
            continue;
        }
        if (offset & ((1u << access->align_bits) - 1)) fail_buffer(SIM_MISALIGNED, access, i);
        if (access->is_write || buffer->use & SIM_WRITTEN) {
            check_conflict(worker, access, i);
        } else if (access->slot < SIM_MAX_SITES) {
            uintptr_t limit = (buffer->size - access->bytes) >> access->align_bits;
            sim_sites(worker)[access->slot] = (SimSite){buffer->address, limit};
        }
        return;
    }
    if (read_only != SIM_MAX_BUFFERS) fail_buffer(SIM_READ_ONLY, access, read_only);
    uintptr_t in_image = access->address - (uintptr_t)image_start, image_size = (uintptr_t)(image_end - image_start);
    if (!access->is_write && in_image < image_size && access->bytes <= image_size - in_image) return;
    fail_out_of_bounds(access);
}

static INLINE void check(const Access *access) {
    SimWorker *worker = sim_worker();
    if (access->address - arena(worker) < SIM_ARENA_SIZE) {
        check_threadgroup(worker, access);
    } else {
        check_elsewhere(worker, access);
    }
}

/* One access of the kernel that its inline check did not pass; `what` is a SIM_ACCESS. */
EXPORT PRESERVE void mlxr_check(uintptr_t address, uint32_t slot, uint32_t site, uint32_t what) {
    Access access = {
        address, SIM_ACCESS_BYTES(what), SIM_ACCESS_ALIGN_BITS(what), SIM_ACCESS_IS_WRITE(what), slot, site,
    };
    check(&access);
}

/* A struct copied or filled. */
EXPORT PRESERVE void mlxr_check_range(uintptr_t address, uint64_t bytes, uint32_t site, uint32_t is_write) {
    Access access = {address, bytes, 0, is_write, SIM_MAX_SITES, site};
    if (bytes != 0) check(&access);
}

EXPORT void __tsan_init(void) {}

/* -fsanitize=array-bounds and -fsanitize=integer-divide-by-zero: indices of arrays of known length, divisors. */
typedef struct {
    const char *file;
    uint32_t line;
    uint32_t column;
} Source;

static FAIL void fail_at(uint32_t kind, const Source *where, uint64_t index) {
    SimFault fault = {.offset = (int64_t)index, .site = where->line << 12 | (where->column & 4095u)};
    fail(kind, &fault);
}

EXPORT __attribute__((noreturn)) void __ubsan_handle_out_of_bounds_abort(const Source *where, uint64_t index) {
    fail_at(SIM_INDEX, where, index);
}

EXPORT __attribute__((noreturn)) void __ubsan_handle_divrem_overflow_abort(const Source *where, uint64_t left,
                                                                           uint64_t right) {
    (void)right;
    fail_at(SIM_DIVISION, where, left);
}

/* -fsanitize=local-bounds: an access through a pointer to a private array, outside of it. */
EXPORT __attribute__((noreturn)) void mlxr_fail_private(uint32_t site) {
    SimFault fault = {.site = site};
    fail(SIM_PRIVATE, &fault);
}

/* ---- called by the prelude ---- */

EXPORT uint32_t sim_synchronise(uint32_t operation, uint32_t site, uint32_t value, uint32_t argument) {
    return sim_worker()->synchronise(operation, site, value, argument);
}

EXPORT uint32_t sim_lane(void) { return sim_thread() % SIM_LANES; }

EXPORT void *sim_threadgroup_array(uint32_t site, uint32_t size, uint32_t count, uint32_t align, const char *name) {
    return sim_worker()->threadgroup_array(site, size, count, align, name);
}
