// Thread 0 counts each call when all threads have ended the one before. Where MLXR_CLOCK is defined, it notes the time
// then, too; elsewhere there is no clock.
#ifdef MLXR_CLOCK
static struct {
    uint64_t ns[2][40];
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
    // rope_table_2
    MLXR_COUNT(1, 0, 1);
    rope_table_afa73e2e(w, b, (float *)(a + 512));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(2, 0, 2);
    embed_7fd3fcda(w, b, t[0], (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(3, 0, 3);
    qkv_89a0c0c4(w, b, (float *)(a + 1024), (const float *)t[1], t[34], t[35], t[36], (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(4, 0, 4);
    attend_decode_c7275e13(w, b, (float *)(a + 1792), (float *)(a + 0), 0, (const float *)t[2], (const float *)t[3], (float *)(a + 4864));
    mlxr_barrier(w);
    // layers.0.attention.o_projected
    MLXR_COUNT(5, 0, 5);
    o_2b889706(w, b, (float *)(a + 4864), t[4], (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(6, 0, 6);
    gate_up_f920e18f(w, b, (float *)(a + 1024), (const float *)t[6], t[46], t[47], (float *)(a + 1792), (const float *)t[5], (float *)(a + 2560), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.0.mlp.down_projected
    MLXR_COUNT(7, 0, 7);
    down_5d17e95e(w, b, (float *)(a + 2560), t[7], (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(8, 0, 8);
    qkv_f3f47b7a(w, b, (float *)(a + 4096), (const float *)t[9], t[37], t[38], t[39], (float *)(a + 1024), (const float *)t[8], (float *)(a + 4864), (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(4, 0, 9);
    attend_decode_c7275e13(w, b, (float *)(a + 4864), (float *)(a + 0), 1, (const float *)t[10], (const float *)t[11], (float *)(a + 2560));
    mlxr_barrier(w);
    // layers.1.attention.o_projected
    MLXR_COUNT(5, 0, 10);
    o_2b889706(w, b, (float *)(a + 2560), t[12], (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(6, 0, 11);
    gate_up_f920e18f(w, b, (float *)(a + 1792), (const float *)t[14], t[48], t[49], (float *)(a + 1024), (const float *)t[13], (float *)(a + 2560), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.mlp.down_projected
    MLXR_COUNT(7, 0, 12);
    down_5d17e95e(w, b, (float *)(a + 2560), t[15], (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.2.attention.qkv_projected
    MLXR_COUNT(8, 0, 13);
    qkv_f3f47b7a(w, b, (float *)(a + 4096), (const float *)t[17], t[40], t[41], t[42], (float *)(a + 1024), (const float *)t[16], (float *)(a + 4864), (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.2.attention.attended
    MLXR_COUNT(9, 0, 14);
    attend_decode_828c5b59(w, b, (float *)(a + 4864), (float *)(a + 512), 2, (const float *)t[18], (const float *)t[19], (float *)(a + 2560));
    mlxr_barrier(w);
    // layers.2.attention.o_projected
    MLXR_COUNT(5, 0, 15);
    o_2b889706(w, b, (float *)(a + 2560), t[20], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.2.mlp.gated
    MLXR_COUNT(6, 0, 16);
    gate_up_f920e18f(w, b, (float *)(a + 1792), (const float *)t[22], t[50], t[51], (float *)(a + 512), (const float *)t[21], (float *)(a + 2560), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.2.mlp.down_projected
    MLXR_COUNT(7, 0, 17);
    down_5d17e95e(w, b, (float *)(a + 2560), t[23], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.3.attention.qkv_projected
    MLXR_COUNT(8, 0, 18);
    qkv_f3f47b7a(w, b, (float *)(a + 4096), (const float *)t[25], t[43], t[44], t[45], (float *)(a + 512), (const float *)t[24], (float *)(a + 4864), (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.3.attention.attended
    MLXR_COUNT(4, 0, 19);
    attend_decode_c7275e13(w, b, (float *)(a + 4864), (float *)(a + 0), 3, (const float *)t[26], (const float *)t[27], (float *)(a + 2048));
    mlxr_barrier(w);
    // layers.3.attention.o_projected
    MLXR_COUNT(5, 0, 20);
    o_2b889706(w, b, (float *)(a + 2048), t[28], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.3.mlp.gated
    MLXR_COUNT(6, 0, 21);
    gate_up_f920e18f(w, b, (float *)(a + 1280), (const float *)t[30], t[52], t[53], (float *)(a + 0), (const float *)t[29], (float *)(a + 2048), (float *)(a + 3584));
    mlxr_barrier(w);
    // layers.3.mlp.down_projected
    MLXR_COUNT(7, 0, 22);
    down_5d17e95e(w, b, (float *)(a + 2048), t[31], (float *)(a + 0));
    mlxr_barrier(w);
    // logits_capped
    if (b->rows) {
        MLXR_COUNT(10, 0, 23);
        logits_3081defc(w, b, (float *)(a + 3584), (const float *)t[33], t[0], (float *)(a + 0), (const float *)t[32], b->logits);
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
    // rope_table_2
    MLXR_COUNT(1, 1, 1);
    rope_table_afa73e2e(w, b, (float *)(a + 4096));
    mlxr_barrier(w);
    // embedded
    MLXR_COUNT(2, 1, 2);
    embed_7fd3fcda(w, b, t[0], (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    MLXR_COUNT(3, 1, 3);
    qkv_89a0c0c4(w, b, (float *)(a + 8192), (const float *)t[1], t[34], t[35], t[36], (float *)(a + 14336));
    mlxr_barrier(w);
    // layers.0.attention.qkv_normed
    MLXR_COUNT(11, 1, 4);
    qk_norm_00d24b20(w, b, (float *)(a + 14336), (const float *)t[2], (const float *)t[3], (float *)(a + 38912));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    MLXR_COUNT(12, 1, 5);
    cache_write_c4815d36(w, b, (float *)(a + 38912), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    MLXR_COUNT(13, 1, 6);
    attend_prefill_4c92128b(w, b, (float *)(a + 38912), (float *)(a + 0), 0, (float *)(a + 14336));
    mlxr_barrier(w);
    // layers.0.attention.o_projected
    MLXR_COUNT(5, 1, 7);
    o_2b889706(w, b, (float *)(a + 14336), t[4], (float *)(a + 30720));
    mlxr_barrier(w);
    // layers.0.attention.out
    MLXR_COUNT(14, 1, 8);
    norm_798e3799(w, b, (float *)(a + 30720), (const float *)t[5], (float *)(a + 8192), (float *)(a + 14336));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    MLXR_COUNT(15, 1, 9);
    gate_up_eb70c249(w, b, (float *)(a + 14336), (const float *)t[6], t[46], t[47], (float *)(a + 20480));
    mlxr_barrier(w);
    // layers.0.mlp.down_projected
    MLXR_COUNT(7, 1, 10);
    down_5d17e95e(w, b, (float *)(a + 20480), t[7], (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.0.mlp.out
    MLXR_COUNT(14, 1, 11);
    norm_798e3799(w, b, (float *)(a + 8192), (const float *)t[8], (float *)(a + 14336), (float *)(a + 20480));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    MLXR_COUNT(3, 1, 12);
    qkv_89a0c0c4(w, b, (float *)(a + 20480), (const float *)t[9], t[37], t[38], t[39], (float *)(a + 26624));
    mlxr_barrier(w);
    // layers.1.attention.qkv_normed
    MLXR_COUNT(11, 1, 13);
    qk_norm_00d24b20(w, b, (float *)(a + 26624), (const float *)t[10], (const float *)t[11], (float *)(a + 51200));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    MLXR_COUNT(12, 1, 14);
    cache_write_c4815d36(w, b, (float *)(a + 51200), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    MLXR_COUNT(13, 1, 15);
    attend_prefill_4c92128b(w, b, (float *)(a + 51200), (float *)(a + 0), 1, (float *)(a + 26624));
    mlxr_barrier(w);
    // layers.1.attention.o_projected
    MLXR_COUNT(5, 1, 16);
    o_2b889706(w, b, (float *)(a + 26624), t[12], (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.1.attention.out
    MLXR_COUNT(14, 1, 17);
    norm_798e3799(w, b, (float *)(a + 8192), (const float *)t[13], (float *)(a + 20480), (float *)(a + 14336));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    MLXR_COUNT(15, 1, 18);
    gate_up_eb70c249(w, b, (float *)(a + 14336), (const float *)t[14], t[48], t[49], (float *)(a + 20480));
    mlxr_barrier(w);
    // layers.1.mlp.down_projected
    MLXR_COUNT(7, 1, 19);
    down_5d17e95e(w, b, (float *)(a + 20480), t[15], (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.1.mlp.out
    MLXR_COUNT(14, 1, 20);
    norm_798e3799(w, b, (float *)(a + 8192), (const float *)t[16], (float *)(a + 14336), (float *)(a + 20480));
    mlxr_barrier(w);
    // layers.2.attention.qkv_projected
    MLXR_COUNT(3, 1, 21);
    qkv_89a0c0c4(w, b, (float *)(a + 20480), (const float *)t[17], t[40], t[41], t[42], (float *)(a + 26624));
    mlxr_barrier(w);
    // layers.2.attention.qkv_normed
    MLXR_COUNT(11, 1, 22);
    qk_norm_00d24b20(w, b, (float *)(a + 26624), (const float *)t[18], (const float *)t[19], (float *)(a + 51200));
    mlxr_barrier(w);
    // layers.2.attention.cache_write
    MLXR_COUNT(12, 1, 23);
    cache_write_c4815d36(w, b, (float *)(a + 51200), (float *)(a + 4096), 2);
    mlxr_barrier(w);
    // layers.2.attention.attended
    MLXR_COUNT(16, 1, 24);
    attend_prefill_ad50735c(w, b, (float *)(a + 51200), (float *)(a + 4096), 2, (float *)(a + 26624));
    mlxr_barrier(w);
    // layers.2.attention.o_projected
    MLXR_COUNT(5, 1, 25);
    o_2b889706(w, b, (float *)(a + 26624), t[20], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.2.attention.out
    MLXR_COUNT(14, 1, 26);
    norm_798e3799(w, b, (float *)(a + 4096), (const float *)t[21], (float *)(a + 20480), (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.2.mlp.gated
    MLXR_COUNT(15, 1, 27);
    gate_up_eb70c249(w, b, (float *)(a + 10240), (const float *)t[22], t[50], t[51], (float *)(a + 16384));
    mlxr_barrier(w);
    // layers.2.mlp.down_projected
    MLXR_COUNT(7, 1, 28);
    down_5d17e95e(w, b, (float *)(a + 16384), t[23], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.2.mlp.out
    MLXR_COUNT(14, 1, 29);
    norm_798e3799(w, b, (float *)(a + 4096), (const float *)t[24], (float *)(a + 10240), (float *)(a + 16384));
    mlxr_barrier(w);
    // layers.3.attention.qkv_projected
    MLXR_COUNT(3, 1, 30);
    qkv_89a0c0c4(w, b, (float *)(a + 16384), (const float *)t[25], t[43], t[44], t[45], (float *)(a + 22528));
    mlxr_barrier(w);
    // layers.3.attention.qkv_normed
    MLXR_COUNT(11, 1, 31);
    qk_norm_00d24b20(w, b, (float *)(a + 22528), (const float *)t[26], (const float *)t[27], (float *)(a + 47104));
    mlxr_barrier(w);
    // layers.3.attention.cache_write
    MLXR_COUNT(12, 1, 32);
    cache_write_c4815d36(w, b, (float *)(a + 47104), (float *)(a + 0), 3);
    mlxr_barrier(w);
    // layers.3.attention.attended
    MLXR_COUNT(13, 1, 33);
    attend_prefill_4c92128b(w, b, (float *)(a + 47104), (float *)(a + 0), 3, (float *)(a + 22528));
    mlxr_barrier(w);
    // layers.3.attention.o_projected
    MLXR_COUNT(5, 1, 34);
    o_2b889706(w, b, (float *)(a + 22528), t[28], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.3.attention.out
    MLXR_COUNT(14, 1, 35);
    norm_798e3799(w, b, (float *)(a + 0), (const float *)t[29], (float *)(a + 16384), (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.3.mlp.gated
    MLXR_COUNT(15, 1, 36);
    gate_up_eb70c249(w, b, (float *)(a + 6144), (const float *)t[30], t[52], t[53], (float *)(a + 12288));
    mlxr_barrier(w);
    // layers.3.mlp.down_projected
    MLXR_COUNT(7, 1, 37);
    down_5d17e95e(w, b, (float *)(a + 12288), t[31], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.3.mlp.out
    MLXR_COUNT(14, 1, 38);
    norm_798e3799(w, b, (float *)(a + 0), (const float *)t[32], (float *)(a + 6144), (float *)(a + 12288));
    mlxr_barrier(w);
    // logits_capped
    if (b->rows) {
        MLXR_COUNT(17, 1, 39);
        logits_a1e40b3d(w, b, (float *)(a + 12288), (const float *)t[33], t[0], b->logits);
    }
}

