// Threads that live as long as the model, and the barrier between the kernels of a step.
//
// The caller's thread is thread 0; the others wait for a step, run it, and wait again. The barrier is a dissemination
// barrier (Hensgen, Finkel and Manber 1988): in round r thread t tells thread t + 2^r that it has come, and waits to be
// told by thread t - 2^r. With two threads that is one cache line each way, and with n it is log2(n) rounds, with no
// counter that all of them fight for. The message is the number of the barrier, which only grows: a thread that runs
// ahead may already announce the next barrier.
//
// A waiting thread spins briefly, then yields between looks, and then sleeps, so that more threads than CPUs (or other
// programs) slow a step down and never stop it. Where a yield shows that another program wants this CPU, the thread sleeps
// at once for a while: who yields waits for a whole slice of the other's, and who was asleep is let in when it is woken.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef MLXR_NO_FUTEX
#define MLXR_FUTEX 1
#endif
#endif

// A thread that is running arrives within a microsecond; one that is not running needs a CPU, perhaps this one.
#define MLXR_SPIN_NS 5000
// To be woken takes up to 130 us where idle CPUs halt, so that it pays to look for that long and somewhat more: the
// shares of a kernel are seldom so uneven, and between steps the caller needs some tens of microseconds to sample.
#define MLXR_YIELD_NS 200000
#define MLXR_POLLS_PER_CLOCK 32
// A yield that takes this long let another program run. After one, so many waits sleep and do not yield.
#define MLXR_TAKEN_NS 100000
#define MLXR_CROWDED_WAITS 500
#define MLXR_STACK_BYTES (2 << 20)

// A number that one thread raises and others wait for. Alone on its lines: CPUs fetch them in pairs.
typedef struct {
    _Alignas(128) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
#ifndef MLXR_FUTEX
    pthread_mutex_t mutex;
    pthread_cond_t raised;
#endif
} mlxr_word;

// A thread's own count of barriers, and where it is told of the others, by round.
typedef struct {
    _Alignas(128) uint32_t barriers;
    int crowded;  // for how many waits more it does not yield
    mlxr_word *told;
} mlxr_member;

struct mlxr_pool {
    mlxr_word step;  // the number of the newest step, or the end
    void (*program)(mlxr_worker *, const mlxr_batch *);
    const mlxr_batch *batch;
    int stop;
    int threads, rounds, running;
    mlxr_member *members;
    mlxr_word *words;
    pthread_t *handles;
};

static inline void mlxr_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static inline int64_t mlxr_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Numbers wrap, so that they are compared by their difference.
static inline int mlxr_reached(mlxr_word *word, uint32_t value) {
    return (int32_t)(atomic_load_explicit(&word->value, memory_order_acquire) - value) >= 0;
}

#ifdef MLXR_FUTEX
static inline void mlxr_word_init(mlxr_word *word) {
    atomic_init(&word->value, 0);
    atomic_init(&word->sleepers, 0);
}

static inline void mlxr_word_free(mlxr_word *word) { (void)word; }

// A sleeper counts itself before it looks once more, and a thread that raises looks for sleepers afterwards. All these
// accesses have one order, so one of the two sees the other.
static inline void mlxr_sleep(mlxr_word *word, uint32_t value) {
    atomic_fetch_add(&word->sleepers, 1);
    for (;;) {
        uint32_t found = atomic_load(&word->value);
        if ((int32_t)(found - value) >= 0) break;
        syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, found, NULL, NULL, 0);
    }
    atomic_fetch_sub(&word->sleepers, 1);
}

static inline void mlxr_wake(mlxr_word *word) {
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
#else
static inline void mlxr_word_init(mlxr_word *word) {
    atomic_init(&word->value, 0);
    atomic_init(&word->sleepers, 0);
    pthread_mutex_init(&word->mutex, NULL);
    pthread_cond_init(&word->raised, NULL);
}

static inline void mlxr_word_free(mlxr_word *word) {
    pthread_cond_destroy(&word->raised);
    pthread_mutex_destroy(&word->mutex);
}

static inline void mlxr_sleep(mlxr_word *word, uint32_t value) {
    atomic_fetch_add(&word->sleepers, 1);
    pthread_mutex_lock(&word->mutex);
    while ((int32_t)(atomic_load(&word->value) - value) < 0) pthread_cond_wait(&word->raised, &word->mutex);
    pthread_mutex_unlock(&word->mutex);
    atomic_fetch_sub(&word->sleepers, 1);
}

static inline void mlxr_wake(mlxr_word *word) {
    pthread_mutex_lock(&word->mutex);
    pthread_cond_broadcast(&word->raised);
    pthread_mutex_unlock(&word->mutex);
}
#endif

static inline void mlxr_raise(mlxr_word *word, uint32_t value) {
    atomic_store(&word->value, value);
    if (atomic_load(&word->sleepers)) mlxr_wake(word);
}

// Lets others run on this CPU.
static inline void mlxr_yield(int *crowded) {
    const int64_t start = mlxr_now_ns();
    sched_yield();
    if (mlxr_now_ns() - start > MLXR_TAKEN_NS) *crowded = MLXR_CROWDED_WAITS;
}

static inline void mlxr_await(mlxr_word *word, uint32_t value, int *crowded) {
    int64_t start = 0;
    for (int64_t waited = 0; waited < MLXR_YIELD_NS;) {
        for (int i = 0; i < MLXR_POLLS_PER_CLOCK; ++i) {
            if (mlxr_reached(word, value)) return;
            mlxr_relax();
        }
        int64_t now = mlxr_now_ns();
        if (start == 0) start = now;
        waited = now - start;
        if (waited <= MLXR_SPIN_NS) continue;
        if (*crowded > 0) break;
        mlxr_yield(crowded);
    }
    if (*crowded > 0) --*crowded;
    mlxr_sleep(word, value);
}

// Returns when all threads have come; what each wrote before, all see after.
static __attribute__((noinline, unused)) void mlxr_barrier(mlxr_worker *w) {
    struct mlxr_pool *pool = w->model->pool;
    mlxr_member *member = &pool->members[w->tid];
    uint32_t number = ++member->barriers;
    for (int round = 0, next = w->tid; round < pool->rounds; ++round) {
        next = w->tid + (1 << round);
        if (next >= pool->threads) next -= pool->threads;
        mlxr_raise(&pool->members[next].told[round], number);
        mlxr_await(&member->told[round], number, &member->crowded);
    }
}

static void *mlxr_pool_thread(void *argument) {
    mlxr_worker *w = argument;
    struct mlxr_pool *pool = w->model->pool;
    for (uint32_t number = 1;; ++number) {
        mlxr_await(&pool->step, number, &pool->members[w->tid].crowded);
        if (pool->stop) return NULL;
        pool->program(w, pool->batch);
        mlxr_barrier(w);
    }
}

// Runs a program on all threads; returns when all are done. One step of a model at a time.
static inline void mlxr_pool_run(mlxr_model *model, void (*program)(mlxr_worker *, const mlxr_batch *),
                                 const mlxr_batch *batch) {
    struct mlxr_pool *pool = model->pool;
    pool->program = program;
    pool->batch = batch;
    if (pool->threads > 1)
        mlxr_raise(&pool->step, atomic_load_explicit(&pool->step.value, memory_order_relaxed) + 1);
    program(&model->workers[0], batch);
    mlxr_barrier(&model->workers[0]);
}

// Ends the threads and frees the pool. Does nothing where there is none.
static inline void mlxr_pool_stop(mlxr_model *model) {
    struct mlxr_pool *pool = model->pool;
    if (!pool) return;
    pool->stop = 1;
    mlxr_raise(&pool->step, atomic_load_explicit(&pool->step.value, memory_order_relaxed) + 1);
    for (int i = 1; i < pool->running; ++i) pthread_join(pool->handles[i], NULL);
    for (int i = 0; i < pool->threads * pool->rounds; ++i) mlxr_word_free(&pool->words[i]);
    mlxr_word_free(&pool->step);
    free(pool->handles);
    free(pool->words);
    free(pool->members);
    free(pool);
    model->pool = NULL;
}

// Linux lets a process use the AMX registers when it has asked, once for all threads that start after.
static inline int mlxr_ask_for_amx(void) {
#if defined(__linux__) && defined(__AMX_TILE__)
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */)) return -1;
#endif
    return 0;
}

static inline void *mlxr_pool_memory(size_t bytes) {
    void *memory = NULL;
    int error = posix_memalign(&memory, 128, bytes ? bytes : 128);
    if (error) {
        errno = error;
        return NULL;
    }
    return memset(memory, 0, bytes);
}

// Starts threads - 1 threads for model->workers[1 ...], which must be filled in. Returns 0, or -1 and errno: no memory,
// no more threads, or a kernel that refuses AMX.
static inline int mlxr_pool_start(mlxr_model *model, int threads) {
    if (mlxr_ask_for_amx()) return -1;
    struct mlxr_pool *pool = mlxr_pool_memory(sizeof *pool);
    if (!pool) return -1;
    model->pool = pool;
    mlxr_word_init(&pool->step);
    pool->running = 1;
    int rounds = 0;
    while ((1 << rounds) < threads) ++rounds;
    pool->words = mlxr_pool_memory(sizeof(mlxr_word) * (size_t)(threads * rounds));
    pool->members = mlxr_pool_memory(sizeof(mlxr_member) * (size_t)threads);
    pool->handles = mlxr_pool_memory(sizeof(pthread_t) * (size_t)threads);
    int error = pool->words && pool->members && pool->handles ? 0 : errno;
    if (!error) {
        pool->threads = threads;
        pool->rounds = rounds;
        for (int i = 0; i < threads * rounds; ++i) mlxr_word_init(&pool->words[i]);
        for (int i = 0; i < threads; ++i) pool->members[i].told = &pool->words[i * rounds];
    }
    // Signals are for the threads of the caller: Python handles them in its main thread.
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, MLXR_STACK_BYTES);
    for (; !error && pool->running < threads; pool->running += !error)
        error = pthread_create(&pool->handles[pool->running], &attributes, mlxr_pool_thread,
                               &model->workers[pool->running]);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        mlxr_pool_stop(model);
        errno = error;
        return -1;
    }
    return 0;
}
