// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][21];
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
    rope_table_121186ca(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 0, 1);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 256));
    mlxr_barrier(w);
    // layers.0.attention.qkv_a_projected
    MLXR_COUNT(2, 0, 2);
    qkv_a_5567e1cb(w, b, (float *)(a + 256), (const float *)t[1], t[21], t[22], (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.0.attention.q_b_projected
    MLXR_COUNT(3, 0, 3);
    q_b_8b7afc05(w, b, (float *)(a + 1024), (const float *)t[2], t[3], (float *)(a + 3328));
    mlxr_barrier(w);
    // layers.0.attention.values
    MLXR_COUNT(4, 0, 4);
    latent_decode_52be7f51(w, b, (float *)(a + 1024), (const float *)t[4], (float *)(a + 3328), t[5], t[6], (float *)(a + 0), 0, (float *)(a + 7168));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(5, 0, 5);
    o_d3315b48(w, b, (float *)(a + 7168), t[7], (float *)(a + 256), (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(6, 0, 6);
    gate_up_0d8adb5b(w, b, (float *)(a + 1024), (const float *)t[8], t[25], t[26], (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(7, 0, 7);
    down_4a487f66(w, b, (float *)(a + 1792), t[9], (float *)(a + 1024), (float *)(a + 256));
    mlxr_barrier(w);
    // layers.1.attention.qkv_a_projected
    MLXR_COUNT(2, 0, 8);
    qkv_a_5567e1cb(w, b, (float *)(a + 256), (const float *)t[10], t[23], t[24], (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.attention.q_b_projected
    MLXR_COUNT(3, 0, 9);
    q_b_8b7afc05(w, b, (float *)(a + 1024), (const float *)t[11], t[12], (float *)(a + 3328));
    mlxr_barrier(w);
    // layers.1.attention.values
    MLXR_COUNT(4, 0, 10);
    latent_decode_52be7f51(w, b, (float *)(a + 1024), (const float *)t[13], (float *)(a + 3328), t[14], t[15], (float *)(a + 0), 1, (float *)(a + 7168));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(5, 0, 11);
    o_d3315b48(w, b, (float *)(a + 7168), t[16], (float *)(a + 256), (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(6, 0, 12);
    gate_up_0d8adb5b(w, b, (float *)(a + 1024), (const float *)t[17], t[27], t[28], (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(7, 0, 13);
    down_4a487f66(w, b, (float *)(a + 1792), t[18], (float *)(a + 1024), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(8, 0, 14);
        logits_9df983b8(w, b, (float *)(a + 0), (const float *)t[19], t[20], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    MLXR_COUNT(0, 1, 0);
    rope_table_121186ca(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 1, 1);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 2048));
    mlxr_barrier(w);
    // layers.0.attention.qkv_a_projected
    MLXR_COUNT(2, 1, 2);
    qkv_a_5567e1cb(w, b, (float *)(a + 2048), (const float *)t[1], t[21], t[22], (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(9, 1, 3);
    latent_write_101a83e9(w, b, (float *)(a + 8192), (const float *)t[2], (const float *)t[4], (float *)(a + 0), 0, (float *)(a + 26624));
    mlxr_barrier(w);
    // layers.0.attention.q_b_projected
    MLXR_COUNT(10, 1, 4);
    q_b_bb1e900a(w, b, (float *)(a + 26624), t[3], (float *)(a + 33792));
    mlxr_barrier(w);
    // layers.0.attention.queries
    MLXR_COUNT(11, 1, 5);
    latent_queries_d9e64069(w, b, (float *)(a + 33792), t[5], (float *)(a + 0), (float *)(a + 64512));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(12, 1, 6);
    attend_prefill_d3667cac(w, b, (float *)(a + 64512), 0, (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.0.attention.values
    MLXR_COUNT(13, 1, 7);
    head_product_4075277d(w, b, (float *)(a + 8192), t[6], (float *)(a + 63488));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(5, 1, 8);
    o_d3315b48(w, b, (float *)(a + 63488), t[7], (float *)(a + 2048), (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(6, 1, 9);
    gate_up_0d8adb5b(w, b, (float *)(a + 8192), (const float *)t[8], t[25], t[26], (float *)(a + 14336));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(7, 1, 10);
    down_4a487f66(w, b, (float *)(a + 14336), t[9], (float *)(a + 8192), (float *)(a + 2048));
    mlxr_barrier(w);
    // layers.1.attention.qkv_a_projected
    MLXR_COUNT(2, 1, 11);
    qkv_a_5567e1cb(w, b, (float *)(a + 2048), (const float *)t[10], t[23], t[24], (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(9, 1, 12);
    latent_write_101a83e9(w, b, (float *)(a + 8192), (const float *)t[11], (const float *)t[13], (float *)(a + 0), 1, (float *)(a + 26624));
    mlxr_barrier(w);
    // layers.1.attention.q_b_projected
    MLXR_COUNT(10, 1, 13);
    q_b_bb1e900a(w, b, (float *)(a + 26624), t[12], (float *)(a + 33792));
    mlxr_barrier(w);
    // layers.1.attention.queries
    MLXR_COUNT(11, 1, 14);
    latent_queries_d9e64069(w, b, (float *)(a + 33792), t[14], (float *)(a + 0), (float *)(a + 64512));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(12, 1, 15);
    attend_prefill_d3667cac(w, b, (float *)(a + 64512), 1, (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.1.attention.values
    MLXR_COUNT(13, 1, 16);
    head_product_4075277d(w, b, (float *)(a + 8192), t[15], (float *)(a + 63488));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(5, 1, 17);
    o_d3315b48(w, b, (float *)(a + 63488), t[16], (float *)(a + 2048), (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(6, 1, 18);
    gate_up_0d8adb5b(w, b, (float *)(a + 8192), (const float *)t[17], t[27], t[28], (float *)(a + 14336));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(7, 1, 19);
    down_4a487f66(w, b, (float *)(a + 14336), t[18], (float *)(a + 8192), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(8, 1, 20);
        logits_9df983b8(w, b, (float *)(a + 0), (const float *)t[19], t[20], b->logits);
    }
}

