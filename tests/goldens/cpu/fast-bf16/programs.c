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
    embed_41531896(w, b, t[0], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 768), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[3];
    attend_decode_2984bce8(w, b, (float *)(a + 1536), (float *)(a + 0), 0, (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 7936), t[2], (float *)(a + 768), (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 1536), (const float *)t[3], t[17], t[18], (float *)(a + 2304));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 2304), t[4], (float *)(a + 1536), (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 768), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[3];
    attend_decode_2984bce8(w, b, (float *)(a + 1536), (float *)(a + 0), 1, (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 7936), t[6], (float *)(a + 768), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 0), (const float *)t[7], t[19], t[20], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 768), t[8], (float *)(a + 0), (float *)(a + 2304));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[7];
        logits_2432459a(w, b, (float *)(a + 2304), (const float *)t[9], t[10], b->logits);
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
    embed_41531896(w, b, t[0], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 5120), (const float *)t[1], t[11], t[12], t[13], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    if (launches) ++launches[8];
    cache_write_8e908584(w, b, (float *)(a + 11264), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[9];
    attend_prefill_5fdf46fa(w, b, (float *)(a + 11264), (float *)(a + 0), 0, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 62464), t[2], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 11264), (const float *)t[3], t[17], t[18], (float *)(a + 17408));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 17408), t[4], (float *)(a + 11264), (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_24458f63(w, b, (float *)(a + 5120), (const float *)t[5], t[14], t[15], t[16], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    if (launches) ++launches[8];
    cache_write_8e908584(w, b, (float *)(a + 11264), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[9];
    attend_prefill_5fdf46fa(w, b, (float *)(a + 11264), (float *)(a + 0), 1, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[4];
    o_365148cb(w, b, (float *)(a + 62464), t[6], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.1.mlp.gated
    if (launches) ++launches[5];
    gate_up_fcedefba(w, b, (float *)(a + 11264), (const float *)t[7], t[19], t[20], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[6];
    down_d5ba882a(w, b, (float *)(a + 0), t[8], (float *)(a + 11264), (float *)(a + 17408));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[7];
        logits_2432459a(w, b, (float *)(a + 17408), (const float *)t[9], t[10], b->logits);
    }
}

