// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][15];
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
    // rope_table
    MLXR_COUNT(0, 0, 0);
    rope_table_ba8e7ad2(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 0, 1);
    embed_ff3e49c4(w, b, t[0], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 0, 2);
    qkv_08e7bfe8(w, b, (float *)(a + 512), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(3, 0, 3);
    attend_decode_4d3a8ee6(w, b, (float *)(a + 4608), (float *)(a + 0), 0, (float *)(a + 10752));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(4, 0, 4);
    o_b17ec7b7(w, b, (float *)(a + 10752), t[2], (float *)(a + 512), (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(5, 0, 5);
    gate_up_0678acb8(w, b, (float *)(a + 4608), (const float *)t[3], t[17], t[18], (float *)(a + 8704));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(6, 0, 6);
    down_269ba2e9(w, b, (float *)(a + 8704), t[4], (float *)(a + 4608), (float *)(a + 512));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 0, 7);
    qkv_08e7bfe8(w, b, (float *)(a + 512), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(3, 0, 8);
    attend_decode_4d3a8ee6(w, b, (float *)(a + 4608), (float *)(a + 0), 1, (float *)(a + 10752));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(4, 0, 9);
    o_b17ec7b7(w, b, (float *)(a + 10752), t[6], (float *)(a + 512), (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(5, 0, 10);
    gate_up_0678acb8(w, b, (float *)(a + 4608), (const float *)t[7], t[19], t[20], (float *)(a + 8704));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(6, 0, 11);
    down_269ba2e9(w, b, (float *)(a + 8704), t[8], (float *)(a + 4608), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(7, 0, 12);
        logits_25489f01(w, b, (float *)(a + 0), (const float *)t[9], t[10], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    MLXR_COUNT(0, 1, 0);
    rope_table_ba8e7ad2(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 1, 1);
    embed_ff3e49c4(w, b, t[0], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 1, 2);
    qkv_08e7bfe8(w, b, (float *)(a + 4096), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(8, 1, 3);
    cache_write_c0ac821a(w, b, (float *)(a + 36864), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(9, 1, 4);
    attend_prefill_0f6c12fb(w, b, (float *)(a + 36864), (float *)(a + 0), 0, (float *)(a + 86016));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(4, 1, 5);
    o_b17ec7b7(w, b, (float *)(a + 86016), t[2], (float *)(a + 4096), (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(5, 1, 6);
    gate_up_0678acb8(w, b, (float *)(a + 36864), (const float *)t[3], t[17], t[18], (float *)(a + 69632));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(6, 1, 7);
    down_269ba2e9(w, b, (float *)(a + 69632), t[4], (float *)(a + 36864), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 1, 8);
    qkv_08e7bfe8(w, b, (float *)(a + 4096), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(8, 1, 9);
    cache_write_c0ac821a(w, b, (float *)(a + 36864), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(9, 1, 10);
    attend_prefill_0f6c12fb(w, b, (float *)(a + 36864), (float *)(a + 0), 1, (float *)(a + 86016));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(4, 1, 11);
    o_b17ec7b7(w, b, (float *)(a + 86016), t[6], (float *)(a + 4096), (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(5, 1, 12);
    gate_up_0678acb8(w, b, (float *)(a + 36864), (const float *)t[7], t[19], t[20], (float *)(a + 69632));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(6, 1, 13);
    down_269ba2e9(w, b, (float *)(a + 69632), t[8], (float *)(a + 36864), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(7, 1, 14);
        logits_25489f01(w, b, (float *)(a + 0), (const float *)t[9], t[10], b->logits);
    }
}

