// Drives the thread pool: pool_driver THREADS BARRIERS STEPS MODELS PAUSE_US
//
// Threads write to plain memory and read each other's after a barrier, so that a wrong count, or a thread sanitizer,
// shows a barrier that lets somebody through. PAUSE_US: between steps, and now and then within one, long enough for
// others to fall asleep. With -Dsched_yield=slow_yield, a yield takes as long as on a crowded CPU: a thread does it once.
#define _GNU_SOURCE
#include "common.h"

#include "pool.h"

#include <stdio.h>
#include <unistd.h>

static int barriers, pause_us;
static int64_t places[256];  // of each thread, not atomic
static int wrong[256];

#ifdef sched_yield
static _Atomic int yields;

int slow_yield(void) {
    ++yields;
    return usleep(2 * MLXR_TAKEN_NS / 1000);
}
#endif

static void program(mlxr_worker *w, const mlxr_batch *b) {
    for (int i = 0; i < barriers; ++i) {
        places[w->tid] = (int64_t)b->tokens * barriers + i;
        if (pause_us && i == barriers / 2 && w->tid == b->tokens % w->threads) usleep((useconds_t)pause_us);
        mlxr_barrier(w);
        for (int t = 0; t < w->threads; ++t)
            if (places[t] != (int64_t)b->tokens * barriers + i) ++wrong[w->tid];
        mlxr_barrier(w);
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int threads = atoi(argv[1]), steps = atoi(argv[3]), models = atoi(argv[4]), failed = 0;
    barriers = atoi(argv[2]);
    pause_us = atoi(argv[5]);
    for (int round = 0; round < models; ++round) {
        mlxr_model m = {.threads = threads, .workers = calloc((size_t)threads, sizeof(mlxr_worker))};
        for (int i = 0; i < threads; ++i) m.workers[i] = (mlxr_worker){.model = &m, .tid = i, .threads = threads};
        if (mlxr_pool_start(&m, threads)) {
            perror("start");
            return 3;
        }
        for (int step = 0; step < steps; ++step) {
            mlxr_batch b = {.tokens = step};  // gone when the step is done: nobody may read it later
            mlxr_pool_run(&m, program, &b);
            if (pause_us && step % 3 == 0) usleep((useconds_t)pause_us);
        }
        mlxr_pool_stop(&m);
        if (m.pool) ++failed;
        free(m.workers);
    }
    for (int t = 0; t < threads; ++t) failed += wrong[t];
#ifdef sched_yield
    failed += yields > threads * models;
#endif
    printf("%d\n", failed);
    return failed != 0;
}
