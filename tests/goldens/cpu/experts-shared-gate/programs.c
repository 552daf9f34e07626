// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][25];
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
    rope_table_76cafd88(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 0, 1);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 0, 2);
    qkv_507e562b(w, b, (float *)(a + 768), (const float *)t[1], t[17], t[18], t[19], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(3, 0, 3);
    attend_decode_e4e3e4c2(w, b, (float *)(a + 1536), (float *)(a + 0), 0, (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(4, 0, 4);
    o_5f856a69(w, b, (float *)(a + 7936), t[2], (float *)(a + 768), (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.mlp.router_projected
    MLXR_COUNT(5, 0, 5);
    router_7923d5fa(w, b, (float *)(a + 1536), (const float *)t[3], t[4], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.mlp.experts.gated
    MLXR_COUNT(6, 0, 6);
    routed_experts_gate_up_14c548fa(w, b, (float *)(a + 1536), (const float *)t[3], t[23], t[24], (float *)(a + 768), t[25], t[26], t[7], t[5], (float *)(a + 2304), (int32_t *)(a + 1024), (float *)(a + 1280), (float *)(a + 4096), (float *)(a + 4864));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(7, 0, 7);
    experts_down_shared_dcfeb910(w, b, (float *)(a + 2304), t[5], (float *)(a + 1536), (int32_t *)(a + 1024), (float *)(a + 1280), t[6], (float *)(a + 4096), (float *)(a + 4864), (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 0, 8);
    qkv_507e562b(w, b, (float *)(a + 5120), (const float *)t[8], t[20], t[21], t[22], (float *)(a + 5888));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(3, 0, 9);
    attend_decode_e4e3e4c2(w, b, (float *)(a + 5888), (float *)(a + 0), 1, (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(4, 0, 10);
    o_5f856a69(w, b, (float *)(a + 768), t[9], (float *)(a + 5120), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.router_projected
    MLXR_COUNT(5, 0, 11);
    router_7923d5fa(w, b, (float *)(a + 0), (const float *)t[10], t[11], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.experts.gated
    MLXR_COUNT(6, 0, 12);
    routed_experts_gate_up_14c548fa(w, b, (float *)(a + 0), (const float *)t[10], t[27], t[28], (float *)(a + 768), t[29], t[30], t[14], t[12], (float *)(a + 1024), (int32_t *)(a + 2816), (float *)(a + 3072), (float *)(a + 3328), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(7, 0, 13);
    experts_down_shared_dcfeb910(w, b, (float *)(a + 1024), t[12], (float *)(a + 0), (int32_t *)(a + 2816), (float *)(a + 3072), t[13], (float *)(a + 3328), (float *)(a + 4096), (float *)(a + 4352));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(8, 0, 14);
        logits_9df983b8(w, b, (float *)(a + 4352), (const float *)t[15], t[16], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    MLXR_COUNT(0, 1, 0);
    rope_table_76cafd88(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 1, 1);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 1, 2);
    qkv_507e562b(w, b, (float *)(a + 5120), (const float *)t[1], t[17], t[18], t[19], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(9, 1, 3);
    cache_write_9a9f0583(w, b, (float *)(a + 11264), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(10, 1, 4);
    attend_prefill_9225155d(w, b, (float *)(a + 11264), (float *)(a + 0), 0, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(4, 1, 5);
    o_5f856a69(w, b, (float *)(a + 62464), t[2], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.mlp.router_projected
    MLXR_COUNT(5, 1, 6);
    router_7923d5fa(w, b, (float *)(a + 11264), (const float *)t[3], t[4], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.mlp.routed
    MLXR_COUNT(11, 1, 7);
    route_c57caa6e(w, b, (float *)(a + 5120), (int32_t *)(a + 5888), (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.0.mlp.experts.gated
    MLXR_COUNT(12, 1, 8);
    experts_gate_up_37339a35(w, b, (float *)(a + 11264), (const float *)t[3], t[23], t[24], (int32_t *)(a + 5888), t[5], (float *)(a + 17408));
    mlxr_barrier(w);
    // layers.0.mlp.shared.gated
    MLXR_COUNT(13, 1, 9);
    gate_up_0314fb9f(w, b, (float *)(a + 11264), (const float *)t[3], t[25], t[26], (float *)(a + 31744));
    mlxr_barrier(w);
    // layers.0.mlp.shared.router_projected
    MLXR_COUNT(14, 1, 10);
    router_47f3c2ee(w, b, (float *)(a + 11264), (const float *)t[3], t[7], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.mlp.out_1
    MLXR_COUNT(15, 1, 11);
    experts_down_86c11ff0(w, b, (float *)(a + 17408), t[5], (float *)(a + 11264), (int32_t *)(a + 5888), (float *)(a + 6144), (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(16, 1, 12);
    down_6e6397c2(w, b, (float *)(a + 31744), t[6], (float *)(a + 36864), (float *)(a + 5120), (float *)(a + 5376));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 1, 13);
    qkv_507e562b(w, b, (float *)(a + 5376), (const float *)t[8], t[20], t[21], t[22], (float *)(a + 11520));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(9, 1, 14);
    cache_write_9a9f0583(w, b, (float *)(a + 11520), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(10, 1, 15);
    attend_prefill_9225155d(w, b, (float *)(a + 11520), (float *)(a + 0), 1, (float *)(a + 62720));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(4, 1, 16);
    o_5f856a69(w, b, (float *)(a + 62720), t[9], (float *)(a + 5376), (float *)(a + 11520));
    mlxr_barrier(w);
    // layers.1.mlp.router_projected
    MLXR_COUNT(5, 1, 17);
    router_7923d5fa(w, b, (float *)(a + 11520), (const float *)t[10], t[11], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.routed
    MLXR_COUNT(11, 1, 18);
    route_c57caa6e(w, b, (float *)(a + 0), (int32_t *)(a + 768), (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.mlp.experts.gated
    MLXR_COUNT(12, 1, 19);
    experts_gate_up_37339a35(w, b, (float *)(a + 11520), (const float *)t[10], t[27], t[28], (int32_t *)(a + 768), t[12], (float *)(a + 17664));
    mlxr_barrier(w);
    // layers.1.mlp.shared.gated
    MLXR_COUNT(13, 1, 20);
    gate_up_0314fb9f(w, b, (float *)(a + 11520), (const float *)t[10], t[29], t[30], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.1.mlp.shared.router_projected
    MLXR_COUNT(14, 1, 21);
    router_47f3c2ee(w, b, (float *)(a + 11520), (const float *)t[10], t[14], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.out_1
    MLXR_COUNT(15, 1, 22);
    experts_down_86c11ff0(w, b, (float *)(a + 17664), t[12], (float *)(a + 11520), (int32_t *)(a + 768), (float *)(a + 1024), (float *)(a + 32000));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(16, 1, 23);
    down_6e6397c2(w, b, (float *)(a + 1280), t[13], (float *)(a + 32000), (float *)(a + 0), (float *)(a + 6400));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(8, 1, 24);
        logits_9df983b8(w, b, (float *)(a + 6400), (const float *)t[15], t[16], b->logits);
    }
}

