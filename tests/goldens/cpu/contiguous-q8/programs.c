// t: tensors, a: activations
static void mlxr_decode(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    if (launches) ++launches[0];
    rope_table_76cafd88(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    if (launches) ++launches[1];
    embed_fd7c82d7(w, b, t[0], (float *)(a + 256));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_bd97c4c3(w, b, (float *)(a + 256), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[3];
    cache_write_4b1b14b5(w, b, (float *)(a + 512), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[4];
    attend_prefill_e3f1d725(w, b, (float *)(a + 512), (float *)(a + 0), 0, (float *)(a + 2304));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[5];
    o_22dc8ffc(w, b, (float *)(a + 2304), t[2], (float *)(a + 256), (float *)(a + 512));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[6];
    gate_up_329e97ba(w, b, (float *)(a + 512), (const float *)t[3], t[17], t[18], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[7];
    down_f0ded629(w, b, (float *)(a + 768), t[4], (float *)(a + 512), (float *)(a + 256));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_bd97c4c3(w, b, (float *)(a + 256), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 512));
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[3];
    cache_write_4b1b14b5(w, b, (float *)(a + 512), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[4];
    attend_prefill_e3f1d725(w, b, (float *)(a + 512), (float *)(a + 0), 1, (float *)(a + 2304));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[5];
    o_22dc8ffc(w, b, (float *)(a + 2304), t[6], (float *)(a + 256), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[6];
    gate_up_329e97ba(w, b, (float *)(a + 0), (const float *)t[7], t[19], t[20], (float *)(a + 256));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[7];
    down_f0ded629(w, b, (float *)(a + 256), t[8], (float *)(a + 0), (float *)(a + 768));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[8];
        logits_5b37593b(w, b, (float *)(a + 768), (const float *)t[9], t[10], b->logits);
    }
}

// t: tensors, a: activations
static void mlxr_prefill(mlxr_worker *w, const mlxr_batch *b) {
    const uint8_t *const *t = w->model->tensors;
    uint8_t *a = w->model->activations;
    uint64_t *launches = w->tid == 0 ? w->model->launches : NULL;
    // rope_table
    if (launches) ++launches[0];
    rope_table_76cafd88(w, b, (float *)(a + 0));
    mlxr_barrier(w);
    // embedded
    if (launches) ++launches[1];
    embed_fd7c82d7(w, b, t[0], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_bd97c4c3(w, b, (float *)(a + 5120), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    if (launches) ++launches[3];
    cache_write_4b1b14b5(w, b, (float *)(a + 11264), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[4];
    attend_prefill_e3f1d725(w, b, (float *)(a + 11264), (float *)(a + 0), 0, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[5];
    o_22dc8ffc(w, b, (float *)(a + 62464), t[2], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[6];
    gate_up_329e97ba(w, b, (float *)(a + 11264), (const float *)t[3], t[17], t[18], (float *)(a + 17408));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[7];
    down_f0ded629(w, b, (float *)(a + 17408), t[4], (float *)(a + 11264), (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_bd97c4c3(w, b, (float *)(a + 5120), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    if (launches) ++launches[3];
    cache_write_4b1b14b5(w, b, (float *)(a + 11264), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[4];
    attend_prefill_e3f1d725(w, b, (float *)(a + 11264), (float *)(a + 0), 1, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[5];
    o_22dc8ffc(w, b, (float *)(a + 62464), t[6], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[6];
    gate_up_329e97ba(w, b, (float *)(a + 11264), (const float *)t[7], t[19], t[20], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[7];
    down_f0ded629(w, b, (float *)(a + 0), t[8], (float *)(a + 11264), (float *)(a + 17408));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[8];
        logits_5b37593b(w, b, (float *)(a + 17408), (const float *)t[9], t[10], b->logits);
    }
}

