// Types and small helpers that every part of the program shares.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MLXR_INLINE static inline __attribute__((always_inline))

// One step, laid out as in runtime/batch.py.
typedef struct {
    int32_t program;  // 0: decode, 1: prefill
    int32_t tokens, seqs, rows, max_blocks;
    const int32_t *token_ids;     // [tokens]
    const int32_t *positions;     // [tokens]
    const int32_t *slots;         // [tokens]
    const int32_t *query_start;   // [seqs + 1]
    const int32_t *context_lens;  // [seqs]
    const int32_t *block_tables;  // [seqs][max_blocks]
    const int32_t *logit_rows;    // [rows]
    float *logits;                // [rows][vocab]
} mlxr_batch;

struct mlxr_model;
struct mlxr_pool;

// What one thread knows of itself while a step runs.
typedef struct mlxr_worker {
    struct mlxr_model *model;
    int tid, threads;
    uint8_t *scratch;  // this thread's own, 64-byte aligned
    uint8_t *shared;   // all threads', 64-byte aligned
} mlxr_worker;

typedef struct mlxr_model {
    const uint8_t *const *tensors;
    uint8_t *k_arena, *v_arena;
    uint8_t *activations;
    mlxr_worker *workers;
    struct mlxr_pool *pool;
    uint64_t *launches;
    int threads;
} mlxr_model;

// The items [*first, *last) of n that fall to this thread.
MLXR_INLINE void mlxr_share(const mlxr_worker *w, int n, int *first, int *last) {
    *first = (int)((int64_t)n * w->tid / w->threads);
    *last = (int)((int64_t)n * (w->tid + 1) / w->threads);
}

// The row of a file that holds row `row` of a matrix. Files of llama.cpp store the rows of each head of q and k as
// rotary pairs (0, half, 1, half + 1, ...); `head_rows` is 0 for all other matrices.
MLXR_INLINE int mlxr_file_row(int row, int head_rows) {
    if (!head_rows) return row;
    int head = row / head_rows, i = row % head_rows, half = head_rows / 2;
    return head * head_rows + (i < half ? 2 * i : 2 * (i - half) + 1);
}

// Body of a case of mlxr_pack: panels of 16 rows through FORMAT_pack_panel.
#define MLXR_PACK(format, rows_in_all, row_bytes, blocks)                                                \
    for (int p = first; p < last; ++p) {                                                                 \
        const uint8_t *rows[16];                                                                         \
        for (int i = 0; i < 16; ++i) {                                                                   \
            int row = 16 * p + i;                                                                        \
            rows[i] = row < (rows_in_all) ? src + (size_t)mlxr_file_row(row, unpermute) * (row_bytes) : NULL; \
        }                                                                                                \
        format##_pack_panel(dst + (size_t)p * 16 * (row_bytes), rows, blocks);                           \
    }                                                                                                    \
    return 0;
