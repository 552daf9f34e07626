/* How sim runs a launch: workers, which are threads of the operating system, take threadgroups until none is left.
 *
 * The launching thread is worker 0 and works too. Workers are made when first wanted and wait between launches. The
 * first fault stops the launch.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "sim_runtime.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_WORKERS 256u
/* Guard pages cost two memory mappings a stack, and a process has 65530: later workers rely on the bound that build.py
 * puts on a kernel's stack. */
#define MAX_GUARDED_WORKERS 16u

static struct {
    pthread_mutex_t launch_lock; /* one launch at a time */
    pthread_mutex_t lock;        /* guards what follows */
    pthread_cond_t wake, done;
    SimWorker *workers[MAX_WORKERS]; /* workers[0] serves the launching thread */
    uint64_t num_workers;
    uint64_t generation;
    uint64_t wanted; /* workers that take part in this generation, the launching thread included */
    uint64_t running;
    pid_t process;
    /* Of the current launch; read without the lock. */
    const SimLaunch *launch;
    uint64_t num_groups, stride, start;
    uint64_t launch_number; /* 1 to 65535 */
    uint64_t next_group __attribute__((aligned(64)));
    uint32_t stop __attribute__((aligned(64)));
    int has_fault;
    SimFault fault;
} pool = {.launch_lock = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static void work(SimWorker *worker, uint64_t worker_id) {
    const SimLaunch *launch = pool.launch;
    sim_prepare(worker, launch, worker_id);
    while (!__atomic_load_n(&pool.stop, __ATOMIC_RELAXED)) {
        uint64_t i = __atomic_fetch_add(&pool.next_group, 1, __ATOMIC_RELAXED);
        if (i >= pool.num_groups) break;
        uint64_t number = (uint64_t)(((unsigned __int128)i * pool.stride + pool.start) % pool.num_groups);
        sim_run_group(worker, number, pool.launch_number);
        if (worker->fault.kind != SIM_OK) {
            memcpy(worker->fault.group, worker->group.group, sizeof worker->fault.group);
            pthread_mutex_lock(&pool.lock);
            if (!pool.has_fault) pool.fault = worker->fault;
            pool.has_fault = 1;
            pthread_mutex_unlock(&pool.lock);
            __atomic_store_n(&pool.stop, 1, __ATOMIC_RELAXED);
        }
    }
}

/* ---- workers ---- */

static SimWorker *make_worker(int guarded) {
    uintptr_t raw = (uintptr_t)mmap(0, 2 * SIM_REGION_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (raw == (uintptr_t)MAP_FAILED) return 0;
    uintptr_t base = (raw + SIM_REGION_SIZE - 1) & ~(SIM_REGION_SIZE - 1);
    if (base > raw) munmap((void *)raw, base - raw);
    munmap((void *)(base + SIM_REGION_SIZE), raw + SIM_REGION_SIZE - base);
    int failed = mprotect((void *)base, SIM_SHADOW_OFFSET + SIM_ARENA_SIZE * sizeof(SimShadow), PROT_READ | PROT_WRITE);
    uintptr_t guard = guarded ? (uintptr_t)sysconf(_SC_PAGESIZE) : 0;
    if (guarded) {
        for (uint32_t i = 0; i < SIM_MAX_THREADS && !failed; i++) {
            uintptr_t stack = base + SIM_STACKS_OFFSET + ((uintptr_t)i << SIM_STACK_BITS);
            failed = mprotect((void *)(stack + guard), SIM_STACK_SIZE - guard, PROT_READ | PROT_WRITE);
        }
    } else if (!failed) {
        failed = mprotect((void *)(base + SIM_STACKS_OFFSET), SIM_MAX_THREADS * SIM_STACK_SIZE, PROT_READ | PROT_WRITE);
    }
    if (failed) {
        munmap((void *)base, SIM_REGION_SIZE);
        return 0;
    }
    SimWorker *worker = (SimWorker *)base;
    worker->synchronise = sim_synchronise;
    worker->threadgroup_array = sim_threadgroup_array;
    worker->page = sim_page;
    worker->leave = sim_leave;
    return worker;
}

static void *serve(void *argument) {
    uint64_t worker_id = (uint64_t)(uintptr_t)argument, seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.generation == seen || pool.launch == 0) pthread_cond_wait(&pool.wake, &pool.lock);
        seen = pool.generation;
        if (worker_id >= pool.wanted) continue;
        pthread_mutex_unlock(&pool.lock);
        work(pool.workers[worker_id], worker_id);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0) pthread_cond_signal(&pool.done);
    }
    return 0;
}

/* Makes workers until there are this many. A fork keeps the memory but not the threads: the child starts anew. */
static int grow_pool(uint64_t wanted) {
    if (pool.process != getpid()) {
        pool.process = getpid();
        pool.num_workers = 0;
        pool.generation = 0;
        pool.launch = 0;
        pthread_mutex_init(&pool.lock, 0);
        pthread_cond_init(&pool.wake, 0);
        pthread_cond_init(&pool.done, 0);
    }
    while (pool.num_workers < wanted) {
        uint64_t id = pool.num_workers;
        SimWorker *worker = make_worker(id < MAX_GUARDED_WORKERS);
        if (worker == 0) return -1;
        pool.workers[id] = worker;
        if (id != 0) {
            pthread_t thread;
            if (pthread_create(&thread, 0, serve, (void *)(uintptr_t)id)) {
                munmap(worker, SIM_REGION_SIZE);
                return -1;
            }
            pthread_detach(thread);
        }
        pool.num_workers++;
    }
    return 0;
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Whether a buffer that the kernel writes shares memory with another. */
static int overlap(const SimLaunch *launch, SimFault *fault) {
    for (uint32_t i = 0; i < launch->num_buffers; i++) {
        const SimBuffer *a = &launch->buffers[i];
        if (!(a->use & SIM_WRITTEN) || !(a->use & SIM_WRITABLE)) continue;
        for (uint32_t j = 0; j < launch->num_buffers; j++) {
            const SimBuffer *b = &launch->buffers[j];
            if (i == j || a->address >= b->address + b->size || b->address >= a->address + a->size) continue;
            *fault = (SimFault){.kind = SIM_OVERLAP, .object_kind = SIM_IN_DEVICE, .object = i, .other = j,
                                .object_size = a->size};
            return 1;
        }
    }
    return 0;
}

/* Runs one grid to its end. Returns 0, or 1 and a fault, or -1 when no memory or thread could be had. */
EXPORT int sim_launch(const SimLaunch *launch, SimFault *fault) {
    uint64_t num_groups = (uint64_t)launch->groups[0] * launch->groups[1] * launch->groups[2];
    if (num_groups == 0 || (uint64_t)launch->threads[0] * launch->threads[1] * launch->threads[2] == 0) return 0;
    if (overlap(launch, fault)) return 1;
    pthread_mutex_lock(&pool.launch_lock);
    uint64_t wanted = launch->num_workers < num_groups ? launch->num_workers : num_groups;
    if (wanted > MAX_WORKERS) wanted = MAX_WORKERS;
    if (grow_pool(wanted)) {
        pthread_mutex_unlock(&pool.launch_lock);
        return -1;
    }
    /* Threadgroups in an order of their own as well: a stride that meets every one. */
    uint64_t random = launch->seed;
    pool.start = sim_random(&random) % num_groups;
    do pool.stride = 1 + sim_random(&random) % num_groups;
    while (greatest_divisor(pool.stride, num_groups) != 1);
    if (++pool.launch_number >> 16) {
        sim_clear_pages();
        pool.launch_number = 1;
    }
    pool.num_groups = num_groups;
    pool.next_group = 0;
    pool.stop = 0;
    pool.has_fault = 0;
    pthread_mutex_lock(&pool.lock);
    pool.launch = launch;
    pool.wanted = wanted;
    pool.running = wanted - 1;
    pool.generation++;
    if (wanted > 1) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work(pool.workers[0], 0);
    pthread_mutex_lock(&pool.lock);
    while (pool.running != 0) pthread_cond_wait(&pool.done, &pool.lock);
    pool.launch = 0;
    pthread_mutex_unlock(&pool.lock);
    int failed = pool.has_fault;
    if (failed) *fault = pool.fault;
    pthread_mutex_unlock(&pool.launch_lock);
    return failed;
}
