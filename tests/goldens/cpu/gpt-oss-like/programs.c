// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][35];
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
    rope_table_12b1bc72(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 0, 1);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 0, 2);
    qkv_6bb3035b(w, b, (float *)(a + 768), (const float *)t[1], t[39], t[40], t[41], (const float *)t[42], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(3, 0, 3);
    attend_decode_29c10a1e(w, b, (float *)(a + 1536), (float *)(a + 0), 0, (const float *)t[2], (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(4, 0, 4);
    o_38fa74f1(w, b, (float *)(a + 7936), t[3], (const float *)t[4], (float *)(a + 768), (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.mlp.router_projected
    MLXR_COUNT(5, 0, 5);
    router_be7ef8db(w, b, (float *)(a + 1536), (const float *)t[5], t[6], (const float *)t[7], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.mlp.experts.gated
    MLXR_COUNT(6, 0, 6);
    routed_experts_gate_up_b683504d(w, b, (float *)(a + 1536), (const float *)t[5], t[55], t[56], (const float *)t[57], (float *)(a + 768), t[8], (float *)(a + 2304), (int32_t *)(a + 1024), (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(7, 0, 7);
    experts_down_3d835fde(w, b, (float *)(a + 2304), t[8], (const float *)t[9], (float *)(a + 1536), (int32_t *)(a + 1024), (float *)(a + 1280), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 0, 8);
    qkv_6bb3035b(w, b, (float *)(a + 4096), (const float *)t[10], t[43], t[44], t[45], (const float *)t[46], (float *)(a + 4864));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(8, 0, 9);
    attend_decode_7717ee9c(w, b, (float *)(a + 4864), (float *)(a + 0), 1, (const float *)t[11], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(4, 0, 10);
    o_38fa74f1(w, b, (float *)(a + 11264), t[12], (const float *)t[13], (float *)(a + 4096), (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.router_projected
    MLXR_COUNT(5, 0, 11);
    router_be7ef8db(w, b, (float *)(a + 768), (const float *)t[14], t[15], (const float *)t[16], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.1.mlp.experts.gated
    MLXR_COUNT(6, 0, 12);
    routed_experts_gate_up_b683504d(w, b, (float *)(a + 768), (const float *)t[14], t[58], t[59], (const float *)t[60], (float *)(a + 1536), t[17], (float *)(a + 1792), (int32_t *)(a + 3584), (float *)(a + 3840));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(7, 0, 13);
    experts_down_3d835fde(w, b, (float *)(a + 1792), t[17], (const float *)t[18], (float *)(a + 768), (int32_t *)(a + 3584), (float *)(a + 3840), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.2.attention.qkv_projected
    MLXR_COUNT(2, 0, 14);
    qkv_6bb3035b(w, b, (float *)(a + 4096), (const float *)t[19], t[47], t[48], t[49], (const float *)t[50], (float *)(a + 4864));
    mlxr_barrier(w);
    // layers.2.attention.attended
    MLXR_COUNT(3, 0, 15);
    attend_decode_29c10a1e(w, b, (float *)(a + 4864), (float *)(a + 0), 2, (const float *)t[20], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.2.attention.out
    MLXR_COUNT(4, 0, 16);
    o_38fa74f1(w, b, (float *)(a + 11264), t[21], (const float *)t[22], (float *)(a + 4096), (float *)(a + 768));
    mlxr_barrier(w);
    // layers.2.mlp.router_projected
    MLXR_COUNT(5, 0, 17);
    router_be7ef8db(w, b, (float *)(a + 768), (const float *)t[23], t[24], (const float *)t[25], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.2.mlp.experts.gated
    MLXR_COUNT(6, 0, 18);
    routed_experts_gate_up_b683504d(w, b, (float *)(a + 768), (const float *)t[23], t[61], t[62], (const float *)t[63], (float *)(a + 1536), t[26], (float *)(a + 1792), (int32_t *)(a + 3584), (float *)(a + 3840));
    mlxr_barrier(w);
    // layers.2.mlp.out
    MLXR_COUNT(7, 0, 19);
    experts_down_3d835fde(w, b, (float *)(a + 1792), t[26], (const float *)t[27], (float *)(a + 768), (int32_t *)(a + 3584), (float *)(a + 3840), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.3.attention.qkv_projected
    MLXR_COUNT(2, 0, 20);
    qkv_6bb3035b(w, b, (float *)(a + 4096), (const float *)t[28], t[51], t[52], t[53], (const float *)t[54], (float *)(a + 4864));
    mlxr_barrier(w);
    // layers.3.attention.attended
    MLXR_COUNT(8, 0, 21);
    attend_decode_7717ee9c(w, b, (float *)(a + 4864), (float *)(a + 0), 3, (const float *)t[29], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.3.attention.out
    MLXR_COUNT(4, 0, 22);
    o_38fa74f1(w, b, (float *)(a + 11264), t[30], (const float *)t[31], (float *)(a + 4096), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.3.mlp.router_projected
    MLXR_COUNT(5, 0, 23);
    router_be7ef8db(w, b, (float *)(a + 0), (const float *)t[32], t[33], (const float *)t[34], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.3.mlp.experts.gated
    MLXR_COUNT(6, 0, 24);
    routed_experts_gate_up_b683504d(w, b, (float *)(a + 0), (const float *)t[32], t[64], t[65], (const float *)t[66], (float *)(a + 768), t[35], (float *)(a + 1024), (int32_t *)(a + 2816), (float *)(a + 3072));
    mlxr_barrier(w);
    // layers.3.mlp.out
    MLXR_COUNT(7, 0, 25);
    experts_down_3d835fde(w, b, (float *)(a + 1024), t[35], (const float *)t[36], (float *)(a + 0), (int32_t *)(a + 2816), (float *)(a + 3072), (float *)(a + 3328));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(9, 0, 26);
        logits_9df983b8(w, b, (float *)(a + 3328), (const float *)t[37], t[38], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    MLXR_COUNT(0, 1, 0);
    rope_table_12b1bc72(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(1, 1, 1);
    embed_fd7c82d7(w, b, t[0], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(2, 1, 2);
    qkv_6bb3035b(w, b, (float *)(a + 5120), (const float *)t[1], t[39], t[40], t[41], (const float *)t[42], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(10, 1, 3);
    cache_write_e2a1ebe2(w, b, (float *)(a + 11264), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(11, 1, 4);
    attend_prefill_903fac1a(w, b, (float *)(a + 11264), (float *)(a + 0), 0, (const float *)t[2], (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(4, 1, 5);
    o_38fa74f1(w, b, (float *)(a + 62464), t[3], (const float *)t[4], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.mlp.router_projected
    MLXR_COUNT(5, 1, 6);
    router_be7ef8db(w, b, (float *)(a + 11264), (const float *)t[5], t[6], (const float *)t[7], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.mlp.routed
    MLXR_COUNT(12, 1, 7);
    route_2b2beca4(w, b, (float *)(a + 5120), (int32_t *)(a + 5888), (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.0.mlp.experts.gated
    MLXR_COUNT(13, 1, 8);
    experts_gate_up_f7f534fc(w, b, (float *)(a + 11264), (const float *)t[5], t[55], t[56], (const float *)t[57], (int32_t *)(a + 5888), t[8], (float *)(a + 17408));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(7, 1, 9);
    experts_down_3d835fde(w, b, (float *)(a + 17408), t[8], (const float *)t[9], (float *)(a + 11264), (int32_t *)(a + 5888), (float *)(a + 6144), (float *)(a + 31744));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(2, 1, 10);
    qkv_6bb3035b(w, b, (float *)(a + 31744), (const float *)t[10], t[43], t[44], t[45], (const float *)t[46], (float *)(a + 37888));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(10, 1, 11);
    cache_write_e2a1ebe2(w, b, (float *)(a + 37888), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(14, 1, 12);
    attend_prefill_f749afec(w, b, (float *)(a + 37888), (float *)(a + 0), 1, (const float *)t[11], (float *)(a + 89088));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(4, 1, 13);
    o_38fa74f1(w, b, (float *)(a + 89088), t[12], (const float *)t[13], (float *)(a + 31744), (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.1.mlp.router_projected
    MLXR_COUNT(5, 1, 14);
    router_be7ef8db(w, b, (float *)(a + 5120), (const float *)t[14], t[15], (const float *)t[16], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.mlp.routed
    MLXR_COUNT(12, 1, 15);
    route_2b2beca4(w, b, (float *)(a + 11264), (int32_t *)(a + 12032), (float *)(a + 12288));
    mlxr_barrier(w);
    // layers.1.mlp.experts.gated
    MLXR_COUNT(13, 1, 16);
    experts_gate_up_f7f534fc(w, b, (float *)(a + 5120), (const float *)t[14], t[58], t[59], (const float *)t[60], (int32_t *)(a + 12032), t[17], (float *)(a + 12544));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(7, 1, 17);
    experts_down_3d835fde(w, b, (float *)(a + 12544), t[17], (const float *)t[18], (float *)(a + 5120), (int32_t *)(a + 12032), (float *)(a + 12288), (float *)(a + 26880));
    mlxr_barrier(w);
    // layers.2.attention.qkv_projected
    MLXR_COUNT(2, 1, 18);
    qkv_6bb3035b(w, b, (float *)(a + 26880), (const float *)t[19], t[47], t[48], t[49], (const float *)t[50], (float *)(a + 33024));
    mlxr_barrier(w);
    // layers.2.attention.cache_write
    MLXR_COUNT(10, 1, 19);
    cache_write_e2a1ebe2(w, b, (float *)(a + 33024), (float *)(a + 0), 2);
    mlxr_barrier(w);
    // layers.2.attention.attended
    MLXR_COUNT(11, 1, 20);
    attend_prefill_903fac1a(w, b, (float *)(a + 33024), (float *)(a + 0), 2, (const float *)t[20], (float *)(a + 84224));
    mlxr_barrier(w);
    // layers.2.attention.out
    MLXR_COUNT(4, 1, 21);
    o_38fa74f1(w, b, (float *)(a + 84224), t[21], (const float *)t[22], (float *)(a + 26880), (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.2.mlp.router_projected
    MLXR_COUNT(5, 1, 22);
    router_be7ef8db(w, b, (float *)(a + 5120), (const float *)t[23], t[24], (const float *)t[25], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.2.mlp.routed
    MLXR_COUNT(12, 1, 23);
    route_2b2beca4(w, b, (float *)(a + 11264), (int32_t *)(a + 12032), (float *)(a + 12288));
    mlxr_barrier(w);
    // layers.2.mlp.experts.gated
    MLXR_COUNT(13, 1, 24);
    experts_gate_up_f7f534fc(w, b, (float *)(a + 5120), (const float *)t[23], t[61], t[62], (const float *)t[63], (int32_t *)(a + 12032), t[26], (float *)(a + 12544));
    mlxr_barrier(w);
    // layers.2.mlp.out
    MLXR_COUNT(7, 1, 25);
    experts_down_3d835fde(w, b, (float *)(a + 12544), t[26], (const float *)t[27], (float *)(a + 5120), (int32_t *)(a + 12032), (float *)(a + 12288), (float *)(a + 26880));
    mlxr_barrier(w);
    // layers.3.attention.qkv_projected
    MLXR_COUNT(2, 1, 26);
    qkv_6bb3035b(w, b, (float *)(a + 26880), (const float *)t[28], t[51], t[52], t[53], (const float *)t[54], (float *)(a + 33024));
    mlxr_barrier(w);
    // layers.3.attention.cache_write
    MLXR_COUNT(10, 1, 27);
    cache_write_e2a1ebe2(w, b, (float *)(a + 33024), (float *)(a + 0), 3);
    mlxr_barrier(w);
    // layers.3.attention.attended
    MLXR_COUNT(14, 1, 28);
    attend_prefill_f749afec(w, b, (float *)(a + 33024), (float *)(a + 0), 3, (const float *)t[29], (float *)(a + 84224));
    mlxr_barrier(w);
    // layers.3.attention.out
    MLXR_COUNT(4, 1, 29);
    o_38fa74f1(w, b, (float *)(a + 84224), t[30], (const float *)t[31], (float *)(a + 26880), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.3.mlp.router_projected
    MLXR_COUNT(5, 1, 30);
    router_be7ef8db(w, b, (float *)(a + 0), (const float *)t[32], t[33], (const float *)t[34], (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.3.mlp.routed
    MLXR_COUNT(12, 1, 31);
    route_2b2beca4(w, b, (float *)(a + 6144), (int32_t *)(a + 6912), (float *)(a + 7168));
    mlxr_barrier(w);
    // layers.3.mlp.experts.gated
    MLXR_COUNT(13, 1, 32);
    experts_gate_up_f7f534fc(w, b, (float *)(a + 0), (const float *)t[32], t[64], t[65], (const float *)t[66], (int32_t *)(a + 6912), t[35], (float *)(a + 7424));
    mlxr_barrier(w);
    // layers.3.mlp.out
    MLXR_COUNT(7, 1, 33);
    experts_down_3d835fde(w, b, (float *)(a + 7424), t[35], (const float *)t[36], (float *)(a + 0), (int32_t *)(a + 6912), (float *)(a + 7168), (float *)(a + 21760));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        MLXR_COUNT(9, 1, 34);
        logits_9df983b8(w, b, (float *)(a + 21760), (const float *)t[37], t[38], b->logits);
    }
}

