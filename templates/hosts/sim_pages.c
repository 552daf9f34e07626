/* Who wrote device memory: one word per byte that a kernel of this process may write (sim_runtime.h).
 *
 * Shadows are kept in pages, found by address in a table without locks, made when first needed and never freed; a
 * word carries the number of its launch, so that nothing is cleared between launches.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "sim_runtime.h"

#include <string.h>
#include <sys/mman.h>

#define TABLE_SIZE 65536u /* a power of two; pages for 4 GiB */
#define SHADOW_BYTES (SIM_PAGE_SIZE * sizeof(uint64_t))

static struct {
    uintptr_t number; /* of the page, plus one; 0 is an empty entry */
    uint64_t *shadow;
} table[TABLE_SIZE];

/* The shadow of the page, or 0 when there is no room for one; the access then goes untracked. */
__attribute__((preserve_all)) uint64_t *sim_page(uintptr_t number) {
    uintptr_t hash = number * 0x9e3779b97f4a7c15u >> 48;
    for (uint32_t probe = 0; probe < 64; probe++, hash++) {
        uintptr_t *key = &table[hash % TABLE_SIZE].number, empty = 0;
        uintptr_t found = __atomic_load_n(key, __ATOMIC_RELAXED);
        if (found == 0 && __atomic_compare_exchange_n(key, &empty, number + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            found = number + 1;
        } else if (found == 0) {
            found = empty;
        }
        if (found != number + 1) continue;
        uint64_t **shadow = &table[hash % TABLE_SIZE].shadow, *none = 0;
        uint64_t *page = __atomic_load_n(shadow, __ATOMIC_ACQUIRE);
        if (page != 0) return page;
        page = mmap(0, SHADOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        if (page == MAP_FAILED) return 0;
        if (!__atomic_compare_exchange_n(shadow, &none, page, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            munmap(page, SHADOW_BYTES);
            page = none;
        }
        return page;
    }
    return 0;
}

/* Forgets all writes; no launch may be running. */
void sim_clear_pages(void) {
    for (uint32_t i = 0; i < TABLE_SIZE; i++) {
        if (table[i].shadow != 0) memset(table[i].shadow, 0, SHADOW_BYTES);
    }
}
