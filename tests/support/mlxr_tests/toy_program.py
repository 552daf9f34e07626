"""A C program with the exports of model.c but no model, to test its callers without kernels.

Its logits show its inputs: logits[row][v] = 1000 * token of the row + v + the first byte of tensor 0. In copies, a
block is one byte of the only store. `mlxr_pack` takes tensor 1, [PACKED_ROWS, 64] in q8_0, and keeps its rows one
after the other.
"""

from importlib.resources import files

VOCAB = 37
PACKED_ROWS = 40
ROW_BYTES = 68
BARRIERS = 5

_PROGRAM = """
#include <stdio.h>
#define VOCAB %(vocab)d
#define BARRIERS %(barriers)d
static uint8_t toy_seen[1024];

static void toy(mlxr_worker *w, const mlxr_batch *b) {
    if (w->tid == 0) ++w->model->launches[b->program];
    for (int i = 0; i < BARRIERS; ++i) {
        // Every thread marks its place, and after the barrier finds those of all others.
        toy_seen[w->tid] = (uint8_t)i;
        mlxr_barrier(w);
        for (int t = 0; t < w->threads; ++t)
            if (toy_seen[t] != (uint8_t)i) abort();
        mlxr_barrier(w);
    }
    int first, last;
    mlxr_share(w, b->rows * VOCAB, &first, &last);
    for (int i = first; i < last; ++i)
        b->logits[i] = 1000.0f * b->token_ids[b->logit_rows[i / VOCAB]] + i %% VOCAB + w->model->tensors[0][0];
}

#define API __attribute__((visibility("default")))
API int32_t mlxr_abi(void) { return 7; }

API void mlxr_close(mlxr_model *m) {
    mlxr_pool_stop(m);
    free((void *)m->tensors);
    free((void *)m->stores);
    free(m->workers);
    free(m->launches);
    free(m);
}

API mlxr_model *mlxr_open(const uint8_t *const *tensors, uint8_t *const *stores, int32_t threads) {
    mlxr_model *m = calloc(1, sizeof *m);
    const uint8_t **first = malloc(sizeof *first);
    first[0] = tensors[0];
    m->tensors = first;
    uint8_t **own = malloc(sizeof *own);
    own[0] = stores[0];
    m->stores = own;
    m->threads = threads;
    m->launches = calloc(3, sizeof *m->launches);
    m->workers = calloc((size_t)threads, sizeof *m->workers);
    for (int i = 0; i < threads; ++i) m->workers[i] = (mlxr_worker){.model = m, .tid = i, .threads = threads};
    if (mlxr_pool_start(m, threads)) {
        int error = errno;
        mlxr_close(m);
        errno = error;
        return NULL;
    }
    return m;
}

API void mlxr_step(mlxr_model *m, const mlxr_batch *b) { mlxr_pool_run(m, toy, b); }

API int64_t mlxr_chain(mlxr_model *m, const mlxr_batch *const *steps, int32_t n, int32_t width, const int32_t *ids,
                       int32_t *found) {
    for (int i = 0; i < n; ++i) {
        mlxr_step(m, steps[i]);
        for (int row = 0; row < steps[i]->rows; ++row) *found++ = ids ? ids[width - 1] : width - 1;
    }
    return 1;
}

API void mlxr_copy_blocks(mlxr_model *m, int32_t group, const int32_t *pairs, int32_t count) {
    (void)group;
    ++m->launches[2];
    for (int i = 0; i < count; ++i) m->stores[0][pairs[2 * i + 1]] = m->stores[0][pairs[2 * i]];
}

API const uint64_t *mlxr_launches(const mlxr_model *m) { return m->launches; }

API int32_t mlxr_pack(int32_t tensor, uint8_t *dst, const uint8_t *const *planes, int32_t first, int32_t last) {
    if (tensor != 1) return -1;
    for (int row = 16 * first; row < 16 * last && row < %(packed_rows)d; ++row) {
        const uint8_t *from = planes[0] + (size_t)(row - 16 * first) * %(row_bytes)d;
        memcpy(dst + (size_t)row * %(row_bytes)d, from, %(row_bytes)d);
    }
    return 0;
}
"""


def toy_source(remark: str = "") -> str:
    """The program's text. Texts with different remarks have different cache entries."""
    headers = [files("mlxr.templates").joinpath("cpu", name).read_text("utf-8") for name in ("common.h", "pool.h")]
    program = _PROGRAM % {
        "vocab": VOCAB,
        "barriers": BARRIERS,
        "packed_rows": PACKED_ROWS,
        "row_bytes": ROW_BYTES,
    }
    return "\n".join(("#define _GNU_SOURCE", *headers, program, f"// {remark}\n"))
