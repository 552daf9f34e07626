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
    embed_ff3e49c4(w, b, t[0], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_e58b2fe7(w, b, (float *)(a + 512), (const float *)t[1], t[11], t[12], t[13], (const float *)t[14], (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[3];
    cache_write_26bdc519(w, b, (float *)(a + 4608), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[4];
    attend_prefill_03754d53(w, b, (float *)(a + 4608), (float *)(a + 0), 0, (float *)(a + 10752));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[5];
    o_c93e687f(w, b, (float *)(a + 10752), t[2], (float *)(a + 512), (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[6];
    gate_up_d914ed9d(w, b, (float *)(a + 4608), (const float *)t[3], t[19], t[20], (float *)(a + 8704));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[7];
    down_ff0310af(w, b, (float *)(a + 8704), t[4], (float *)(a + 4608), (float *)(a + 512));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_e58b2fe7(w, b, (float *)(a + 512), (const float *)t[5], t[15], t[16], t[17], (const float *)t[18], (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[3];
    cache_write_26bdc519(w, b, (float *)(a + 4608), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[4];
    attend_prefill_03754d53(w, b, (float *)(a + 4608), (float *)(a + 0), 1, (float *)(a + 10752));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[5];
    o_c93e687f(w, b, (float *)(a + 10752), t[6], (float *)(a + 512), (float *)(a + 4608));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[6];
    gate_up_d914ed9d(w, b, (float *)(a + 4608), (const float *)t[7], t[21], t[22], (float *)(a + 8704));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[8];
    down_89a6b3b3(w, b, (float *)(a + 8704), t[8], (float *)(a + 4608), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[9];
        logits_775474d2(w, b, (float *)(a + 0), (const float *)t[9], t[10], b->logits);
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
    embed_ff3e49c4(w, b, t[0], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_e58b2fe7(w, b, (float *)(a + 4096), (const float *)t[1], t[11], t[12], t[13], (const float *)t[14], (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    if (launches) ++launches[3];
    cache_write_26bdc519(w, b, (float *)(a + 36864), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[4];
    attend_prefill_03754d53(w, b, (float *)(a + 36864), (float *)(a + 0), 0, (float *)(a + 86016));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[5];
    o_c93e687f(w, b, (float *)(a + 86016), t[2], (float *)(a + 4096), (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[6];
    gate_up_d914ed9d(w, b, (float *)(a + 36864), (const float *)t[3], t[19], t[20], (float *)(a + 69632));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[7];
    down_ff0310af(w, b, (float *)(a + 69632), t[4], (float *)(a + 36864), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_e58b2fe7(w, b, (float *)(a + 4096), (const float *)t[5], t[15], t[16], t[17], (const float *)t[18], (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    if (launches) ++launches[3];
    cache_write_26bdc519(w, b, (float *)(a + 36864), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[4];
    attend_prefill_03754d53(w, b, (float *)(a + 36864), (float *)(a + 0), 1, (float *)(a + 86016));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[5];
    o_c93e687f(w, b, (float *)(a + 86016), t[6], (float *)(a + 4096), (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[6];
    gate_up_d914ed9d(w, b, (float *)(a + 36864), (const float *)t[7], t[21], t[22], (float *)(a + 69632));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[8];
    down_89a6b3b3(w, b, (float *)(a + 69632), t[8], (float *)(a + 36864), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[9];
        logits_775474d2(w, b, (float *)(a + 0), (const float *)t[9], t[10], b->logits);
    }
}

