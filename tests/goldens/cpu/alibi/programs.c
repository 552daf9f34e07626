// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][14];
    int64_t begun;
    int program, call;
} mlxr_clock = {.call = -1};

// A call begins, or, with -1, the step has ended: the time since the last one was that call's.
static void mlxr_lap(int program, int call) {
    const int64_t now = mlxr_now_ns();
    if (mlxr_clock.call >= 0) mlxr_clock.ns[mlxr_clock.program][mlxr_clock.call] += (uint64_t)(now - mlxr_clock.begun);
    mlxr_clock.begun = now;
    mlxr_clock.program = program;
    mlxr_clock.call = call;
}
#define MLXR_COUNT(counter, program, call) if (launches) mlxr_lap(program, call), ++launches[counter]
#else
#define MLXR_COUNT(counter, program, call) if (launches) ++launches[counter]
#endif

// t: tensors, a: activations
static void mlxr_decode(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // embedded
    MLXR_COUNT(0, 0, 0);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(1, 0, 1);
    qkv_507e562b(w, b, (float *)(a + 0), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(2, 0, 2);
    attend_decode_cde0bf7d(w, b, (float *)(a + 768), 0, (float *)(a + 7168));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(3, 0, 3);
    o_5f856a69(w, b, (float *)(a + 7168), t[2], (float *)(a + 0), (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(4, 0, 4);
    gate_up_0d8adb5b(w, b, (float *)(a + 768), (const float *)t[3], t[17], t[18], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(5, 0, 5);
    down_4a487f66(w, b, (float *)(a + 1536), t[4], (float *)(a + 768), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(1, 0, 6);
    qkv_507e562b(w, b, (float *)(a + 0), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(2, 0, 7);
    attend_decode_cde0bf7d(w, b, (float *)(a + 768), 1, (float *)(a + 7168));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(3, 0, 8);
    o_5f856a69(w, b, (float *)(a + 7168), t[6], (float *)(a + 0), (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(4, 0, 9);
    gate_up_0d8adb5b(w, b, (float *)(a + 768), (const float *)t[7], t[19], t[20], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(5, 0, 10);
    down_4a487f66(w, b, (float *)(a + 1536), t[8], (float *)(a + 768), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(6, 0, 11);
        logits_9df983b8(w, b, (float *)(a + 0), (const float *)t[9], t[10], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // embedded
    MLXR_COUNT(0, 1, 0);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(1, 1, 1);
    qkv_507e562b(w, b, (float *)(a + 0), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(7, 1, 2);
    cache_write_7050cdc8(w, b, (float *)(a + 6144), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(8, 1, 3);
    attend_prefill_87051d83(w, b, (float *)(a + 6144), 0, (float *)(a + 57344));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(3, 1, 4);
    o_5f856a69(w, b, (float *)(a + 57344), t[2], (float *)(a + 0), (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(4, 1, 5);
    gate_up_0d8adb5b(w, b, (float *)(a + 6144), (const float *)t[3], t[17], t[18], (float *)(a + 12288));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(5, 1, 6);
    down_4a487f66(w, b, (float *)(a + 12288), t[4], (float *)(a + 6144), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(1, 1, 7);
    qkv_507e562b(w, b, (float *)(a + 0), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(7, 1, 8);
    cache_write_7050cdc8(w, b, (float *)(a + 6144), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(8, 1, 9);
    attend_prefill_87051d83(w, b, (float *)(a + 6144), 1, (float *)(a + 57344));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(3, 1, 10);
    o_5f856a69(w, b, (float *)(a + 57344), t[6], (float *)(a + 0), (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(4, 1, 11);
    gate_up_0d8adb5b(w, b, (float *)(a + 6144), (const float *)t[7], t[19], t[20], (float *)(a + 12288));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(5, 1, 12);
    down_4a487f66(w, b, (float *)(a + 12288), t[8], (float *)(a + 6144), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(6, 1, 13);
        logits_9df983b8(w, b, (float *)(a + 0), (const float *)t[9], t[10], b->logits);
    }
}

