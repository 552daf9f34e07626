/* How fast this machine reads memory: N threads each sum their part of a buffer much larger than the caches.
   Usage: bandwidth THREADS MEBIBYTES SECONDS; prints the best pass, in bytes per second. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t lanes __attribute__((vector_size(64)));

enum { MAX_THREADS = 256, UNROLL = 4, AHEAD = 2048 };

typedef struct {
    const uint8_t *start;
    size_t size_bytes;
    lanes sum;
} part;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_part(void *argument) {
    part *p = argument;
    lanes sums[UNROLL] = {{0}};
    for (size_t at = 0; at + sizeof sums <= p->size_bytes; at += sizeof sums) {
        const lanes *here = (const lanes *)(p->start + at);
        for (int i = 0; i < UNROLL; i++) {
            __builtin_prefetch(p->start + at + AHEAD + (size_t)i * sizeof(lanes));
            sums[i] += here[i];
        }
    }
    p->sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return NULL;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int threads = atoi(words[1]);
    size_t size_bytes = (size_t)atoi(words[2]) << 20;
    double seconds = atof(words[3]);
    if (threads < 1 || threads > MAX_THREADS || size_bytes == 0) return 2;
    uint8_t *buffer = NULL;
    if (posix_memalign((void **)&buffer, 2u << 20, size_bytes)) return 1;
#ifdef MADV_HUGEPAGE
    madvise(buffer, size_bytes, MADV_HUGEPAGE);
#endif
    memset(buffer, 1, size_bytes);
    static part parts[MAX_THREADS];
    size_t share = size_bytes / (size_t)threads / 4096 * 4096;
    double best = 0, end = now() + seconds;
    volatile uint64_t sink = 0;
    do {
        pthread_t handles[MAX_THREADS];
        double start = now();
        for (int i = 0; i < threads; i++) {
            parts[i] = (part){buffer + (size_t)i * share, share, {0}};
            if (i && pthread_create(&handles[i], NULL, read_part, &parts[i])) return 1;
        }
        read_part(&parts[0]);
        for (int i = 1; i < threads; i++) pthread_join(handles[i], NULL);
        double speed = (double)share * threads / (now() - start);
        if (speed > best) best = speed;
        for (int i = 0; i < threads; i++) sink += parts[i].sum[0];
    } while (now() < end);
    printf("%.0f\n", best);
    return 0;
}
