// Types and small helpers that every part of the program shares.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MLXR_INLINE static inline __attribute__((always_inline))
#define MLXR_LOG2_E 1.44269504f  // LOG2_E of compiler/targets/scores.py

struct mlxr_links;

// Where one group of layers has the tokens of a step.
typedef struct mlxr_blocks {
    const int32_t *slots;   // [tokens]
    const int32_t *tables;  // [seqs][columns]
    int64_t columns;
} mlxr_blocks;

// One step, laid out as in runtime/hosts/batch.py.
typedef struct mlxr_batch {
    int32_t program;  // 0: decode, 1: prefill
    int32_t tokens, seqs, rows;
    const int32_t *token_ids;     // [tokens]
    const int32_t *positions;     // [tokens]
    const int32_t *token_types;   // [tokens]; NULL: all are 0
    const int32_t *query_start;   // [seqs + 1]
    const int32_t *context_lens;  // [seqs]
    const mlxr_blocks *groups;    // by number of the group
    const int32_t *state_table;   // [seqs][state_columns]; NULL: the model keeps no states
    int64_t state_columns;
    const int32_t *logit_rows;    // [rows]
    float *logits;                // [rows][vocab]
    struct mlxr_links *links;     // of one of several ranks; see links.h
    const struct mlxr_batch *second;  // of a step of two batches that go beside each other; NULL: this is all of it
} mlxr_batch;

struct mlxr_model;
struct mlxr_pool;

// What one thread knows of itself while a step runs.
typedef struct mlxr_worker {
    struct mlxr_model *model;
    int tid, threads;
    uint8_t *scratch;  // this thread's own, 64-byte aligned
    uint8_t *shared;   // all threads', 64-byte aligned
    uint64_t asked;    // bytes of experts that it asked the system to read
} mlxr_worker;

typedef struct mlxr_model {
    const uint8_t *const *tensors;
    uint8_t *const *stores;  // by number in the plan's list
    uint8_t *activations;
    mlxr_worker *workers;
    struct mlxr_pool *pool;
    uint64_t *launches;
    int threads;
    int lent;  // whether the activations are the caller's memory
    int reads_ahead;  // whether weights may not be in memory, so that the system is asked to read those that come next
} mlxr_model;

// The items [*first, *last) of n that fall to this thread.
MLXR_INLINE void mlxr_share(const mlxr_worker *w, int n, int *first, int *last) {
    *first = (int)((int64_t)n * w->tid / w->threads);
    *last = (int)((int64_t)n * (w->tid + 1) / w->threads);
}

#define MLXR_MOST_PLANES 3

// How a tensor is packed: panels of 16 rows go through `panel`, its format's FORMAT_pack_panel, which takes 16 rows of each
// plane, one after the other. One function packs all tensors of a format: one for each would take most of the compiler's time.
typedef struct {
    void (*panel)(uint8_t *dst, const uint8_t *const *rows, int blocks);
    int32_t rows, blocks, planes;
    int32_t row_bytes[MLXR_MOST_PLANES];
    size_t panel_bytes;
} mlxr_packing;

// Panels [first, last) of a tensor, from planes' rows as files have them, from row 16 * first on.
static inline void mlxr_pack_panels(const mlxr_packing *to, uint8_t *dst, const uint8_t *const *planes, int first, int last) {
    for (int p = first; p < last; ++p) {
        const uint8_t *rows[16 * MLXR_MOST_PLANES];
        for (int i = 0; i < 16 * to->planes; ++i) {
            const int row = 16 * p + i % 16, plane = i / 16;
            const size_t offset = (size_t)(row - 16 * first) * (size_t)to->row_bytes[plane];
            rows[i] = row < to->rows ? planes[plane] + offset : NULL;
        }
        to->panel(dst + (size_t)p * to->panel_bytes, rows, to->blocks);
    }
}
