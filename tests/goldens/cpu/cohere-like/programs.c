// t: tensors, a: activations
static void mlxr_decode(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    if (launches) ++launches[0];
    rope_table_ba8e7ad2(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    if (launches) ++launches[1];
    embed_fd7c82d7(w, b, t[0], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_0e58db48(w, b, (float *)(a + 512), (const float *)t[1], t[12], t[13], t[14], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.attention.qkv_normed
    if (launches) ++launches[3];
    qk_norm_dc0080ba(w, b, (float *)(a + 1280), (const float *)t[2], (const float *)t[3], (float *)(a + 13568));
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[4];
    attend_decode_fd072363(w, b, (float *)(a + 13568), (float *)(a + 0), 0, (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[5];
    o_15304f4b(w, b, (float *)(a + 1280), t[4], (float *)(a + 512), (float *)(a + 5376));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[6];
    gate_up_3042a92f(w, b, (float *)(a + 512), (const float *)t[1], t[18], t[19], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[7];
    down_4a487f66(w, b, (float *)(a + 1280), t[5], (float *)(a + 5376), (float *)(a + 512));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_0e58db48(w, b, (float *)(a + 512), (const float *)t[6], t[15], t[16], t[17], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.1.attention.qkv_normed
    if (launches) ++launches[3];
    qk_norm_dc0080ba(w, b, (float *)(a + 1280), (const float *)t[7], (const float *)t[8], (float *)(a + 13568));
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[4];
    attend_decode_fd072363(w, b, (float *)(a + 13568), (float *)(a + 0), 1, (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[5];
    o_15304f4b(w, b, (float *)(a + 1280), t[9], (float *)(a + 512), (float *)(a + 5376));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[6];
    gate_up_3042a92f(w, b, (float *)(a + 512), (const float *)t[6], t[20], t[21], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[7];
    down_4a487f66(w, b, (float *)(a + 1280), t[10], (float *)(a + 5376), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_scaled
    if (b->rows) {
        if (launches) ++launches[8];
        logits_8bc99f1e(w, b, (float *)(a + 0), (const float *)t[11], t[0], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    if (launches) ++launches[0];
    rope_table_ba8e7ad2(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    if (launches) ++launches[1];
    embed_fd7c82d7(w, b, t[0], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_0e58db48(w, b, (float *)(a + 4096), (const float *)t[1], t[12], t[13], t[14], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.0.attention.qkv_normed
    if (launches) ++launches[3];
    qk_norm_dc0080ba(w, b, (float *)(a + 10240), (const float *)t[2], (const float *)t[3], (float *)(a + 108544));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    if (launches) ++launches[9];
    cache_write_46b191c6(w, b, (float *)(a + 108544), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[10];
    attend_prefill_529b72e1(w, b, (float *)(a + 108544), (float *)(a + 0), 0, (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[5];
    o_15304f4b(w, b, (float *)(a + 10240), t[4], (float *)(a + 4096), (float *)(a + 43008));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[6];
    gate_up_3042a92f(w, b, (float *)(a + 4096), (const float *)t[1], t[18], t[19], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[7];
    down_4a487f66(w, b, (float *)(a + 10240), t[5], (float *)(a + 43008), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_0e58db48(w, b, (float *)(a + 4096), (const float *)t[6], t[15], t[16], t[17], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.1.attention.qkv_normed
    if (launches) ++launches[3];
    qk_norm_dc0080ba(w, b, (float *)(a + 10240), (const float *)t[7], (const float *)t[8], (float *)(a + 108544));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    if (launches) ++launches[9];
    cache_write_46b191c6(w, b, (float *)(a + 108544), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[10];
    attend_prefill_529b72e1(w, b, (float *)(a + 108544), (float *)(a + 0), 1, (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[5];
    o_15304f4b(w, b, (float *)(a + 10240), t[9], (float *)(a + 4096), (float *)(a + 43008));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[6];
    gate_up_3042a92f(w, b, (float *)(a + 4096), (const float *)t[6], t[20], t[21], (float *)(a + 10240));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[7];
    down_4a487f66(w, b, (float *)(a + 10240), t[10], (float *)(a + 43008), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_scaled
    if (b->rows) {
        if (launches) ++launches[8];
        logits_8bc99f1e(w, b, (float *)(a + 0), (const float *)t[11], t[0], b->logits);
    }
}

