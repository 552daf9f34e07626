// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][17];
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
    embed_fd7c82d7(w, b, t[0], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 0, 2);
    qkv_0e58db48(w, b, (float *)(a + 512), (const float *)t[1], t[12], t[13], t[14], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.attention.qkv_normed
    MLXR_COUNT(3, 0, 3);
    qk_norm_dc0080ba(w, b, (float *)(a + 1280), (const float *)t[2], (const float *)t[3], (float *)(a + 13568));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(4, 0, 4);
    attend_decode_84616112(w, b, (float *)(a + 13568), (float *)(a + 0), 0, (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(5, 0, 5);
    gate_up_3042a92f(w, b, (float *)(a + 512), (const float *)t[1], t[18], t[19], (float *)(a + 5376));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(6, 0, 6);
    down_sum_a1807db7(w, b, (float *)(a + 1280), t[4], (float *)(a + 512), (float *)(a + 5376), t[5], (float *)(a + 6912));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 0, 7);
    qkv_0e58db48(w, b, (float *)(a + 6912), (const float *)t[6], t[15], t[16], t[17], (float *)(a + 7680));
    mlxr_barrier(w);
    // layers.1.attention.qkv_normed
    MLXR_COUNT(3, 0, 8);
    qk_norm_dc0080ba(w, b, (float *)(a + 7680), (const float *)t[7], (const float *)t[8], (float *)(a + 19968));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(4, 0, 9);
    attend_decode_84616112(w, b, (float *)(a + 19968), (float *)(a + 0), 1, (float *)(a + 512));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(5, 0, 10);
    gate_up_3042a92f(w, b, (float *)(a + 6912), (const float *)t[6], t[20], t[21], (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(6, 0, 11);
    down_sum_a1807db7(w, b, (float *)(a + 512), t[9], (float *)(a + 6912), (float *)(a + 4608), t[10], (float *)(a + 6144));
    mlxr_barrier(w);
    // logits_scaled
    if (b->rows) {
        MLXR_COUNT(7, 0, 12);
        logits_8bc99f1e(w, b, (float *)(a + 6144), (const float *)t[11], t[0], b->logits);
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
    embed_fd7c82d7(w, b, t[0], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 1, 2);
    qkv_0e58db48(w, b, (float *)(a + 4096), (const float *)t[1], t[12], t[13], t[14], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.0.attention.qkv_normed
    MLXR_COUNT(3, 1, 3);
    qk_norm_dc0080ba(w, b, (float *)(a + 10240), (const float *)t[2], (const float *)t[3], (float *)(a + 108544));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(8, 1, 4);
    cache_write_e628052e(w, b, (float *)(a + 108544), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(9, 1, 5);
    attend_prefill_e238605b(w, b, (float *)(a + 108544), (float *)(a + 0), 0, (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(10, 1, 6);
    o_15304f4b(w, b, (float *)(a + 10240), t[4], (float *)(a + 4096), (float *)(a + 43008));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(5, 1, 7);
    gate_up_3042a92f(w, b, (float *)(a + 4096), (const float *)t[1], t[18], t[19], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(11, 1, 8);
    down_4a487f66(w, b, (float *)(a + 10240), t[5], (float *)(a + 43008), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 1, 9);
    qkv_0e58db48(w, b, (float *)(a + 4096), (const float *)t[6], t[15], t[16], t[17], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.1.attention.qkv_normed
    MLXR_COUNT(3, 1, 10);
    qk_norm_dc0080ba(w, b, (float *)(a + 10240), (const float *)t[7], (const float *)t[8], (float *)(a + 108544));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(8, 1, 11);
    cache_write_e628052e(w, b, (float *)(a + 108544), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(9, 1, 12);
    attend_prefill_e238605b(w, b, (float *)(a + 108544), (float *)(a + 0), 1, (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(10, 1, 13);
    o_15304f4b(w, b, (float *)(a + 10240), t[9], (float *)(a + 4096), (float *)(a + 43008));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(5, 1, 14);
    gate_up_3042a92f(w, b, (float *)(a + 4096), (const float *)t[6], t[20], t[21], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(11, 1, 15);
    down_4a487f66(w, b, (float *)(a + 10240), t[10], (float *)(a + 43008), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_scaled
    if (b->rows) {
        MLXR_COUNT(7, 1, 16);
        logits_8bc99f1e(w, b, (float *)(a + 0), (const float *)t[11], t[0], b->logits);
    }
}

