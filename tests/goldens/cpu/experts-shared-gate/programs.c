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
    embed_fd7c82d7(w, b, t[0], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_507e562b(w, b, (float *)(a + 768), (const float *)t[1], t[17], t[18], t[19], (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[3];
    attend_decode_2984bce8(w, b, (float *)(a + 1536), (float *)(a + 0), 0, (float *)(a + 7936));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[4];
    o_5f856a69(w, b, (float *)(a + 7936), t[2], (float *)(a + 768), (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.0.mlp.router_projected
    if (launches) ++launches[5];
    router_7923d5fa(w, b, (float *)(a + 1536), (const float *)t[3], t[4], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.mlp.routed
    if (launches) ++launches[6];
    route_7d6c5510(w, b, (float *)(a + 768), (int32_t *)(a + 1024), (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.0.mlp.experts.gated
    if (launches) ++launches[7];
    experts_gate_up_85f98fa5(w, b, (float *)(a + 1536), (const float *)t[3], t[23], t[24], (int32_t *)(a + 1024), (float *)(a + 2304));
    mlxr_barrier(w);
    // layers.0.mlp.shared.gated
    if (launches) ++launches[8];
    gate_up_0314fb9f(w, b, (float *)(a + 1536), (const float *)t[3], t[25], t[26], (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.0.mlp.shared.router_projected
    if (launches) ++launches[9];
    router_47f3c2ee(w, b, (float *)(a + 1536), (const float *)t[3], t[7], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.0.mlp.out_1
    if (launches) ++launches[10];
    experts_down_c4f2cc14(w, b, (float *)(a + 2304), t[5], (float *)(a + 1536), (int32_t *)(a + 1024), (float *)(a + 1280), (float *)(a + 4864));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[11];
    down_6e6397c2(w, b, (float *)(a + 4096), t[6], (float *)(a + 4864), (float *)(a + 768), (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_507e562b(w, b, (float *)(a + 1024), (const float *)t[8], t[20], t[21], t[22], (float *)(a + 1792));
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[3];
    attend_decode_2984bce8(w, b, (float *)(a + 1792), (float *)(a + 0), 1, (float *)(a + 8192));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[4];
    o_5f856a69(w, b, (float *)(a + 8192), t[9], (float *)(a + 1024), (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.router_projected
    if (launches) ++launches[5];
    router_7923d5fa(w, b, (float *)(a + 0), (const float *)t[10], t[11], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.routed
    if (launches) ++launches[6];
    route_7d6c5510(w, b, (float *)(a + 768), (int32_t *)(a + 1024), (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.1.mlp.experts.gated
    if (launches) ++launches[7];
    experts_gate_up_85f98fa5(w, b, (float *)(a + 0), (const float *)t[10], t[27], t[28], (int32_t *)(a + 1024), (float *)(a + 1536));
    mlxr_barrier(w);
    // layers.1.mlp.shared.gated
    if (launches) ++launches[8];
    gate_up_0314fb9f(w, b, (float *)(a + 0), (const float *)t[10], t[29], t[30], (float *)(a + 3328));
    mlxr_barrier(w);
    // layers.1.mlp.shared.router_projected
    if (launches) ++launches[9];
    router_47f3c2ee(w, b, (float *)(a + 0), (const float *)t[10], t[14], (float *)(a + 768));
    mlxr_barrier(w);
    // layers.1.mlp.out_1
    if (launches) ++launches[10];
    experts_down_c4f2cc14(w, b, (float *)(a + 1536), t[12], (float *)(a + 0), (int32_t *)(a + 1024), (float *)(a + 1280), (float *)(a + 4096));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[11];
    down_6e6397c2(w, b, (float *)(a + 3328), t[13], (float *)(a + 4096), (float *)(a + 768), (float *)(a + 0));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[12];
        logits_9df983b8(w, b, (float *)(a + 0), (const float *)t[15], t[16], b->logits);
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
    qkv_507e562b(w, b, (float *)(a + 5120), (const float *)t[1], t[17], t[18], t[19], (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.attention.cache_write
    if (launches) ++launches[13];
    cache_write_8e908584(w, b, (float *)(a + 11264), (float *)(a + 0), 0);
    mlxr_barrier(w);
    // layers.0.attention.attended
    if (launches) ++launches[14];
    attend_prefill_5fdf46fa(w, b, (float *)(a + 11264), (float *)(a + 0), 0, (float *)(a + 62464));
    mlxr_barrier(w);
    // layers.0.attention.out
    if (launches) ++launches[4];
    o_5f856a69(w, b, (float *)(a + 62464), t[2], (float *)(a + 5120), (float *)(a + 11264));
    mlxr_barrier(w);
    // layers.0.mlp.router_projected
    if (launches) ++launches[5];
    router_7923d5fa(w, b, (float *)(a + 11264), (const float *)t[3], t[4], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.mlp.routed
    if (launches) ++launches[6];
    route_7d6c5510(w, b, (float *)(a + 5120), (int32_t *)(a + 5888), (float *)(a + 6144));
    mlxr_barrier(w);
    // layers.0.mlp.experts.gated
    if (launches) ++launches[7];
    experts_gate_up_85f98fa5(w, b, (float *)(a + 11264), (const float *)t[3], t[23], t[24], (int32_t *)(a + 5888), (float *)(a + 17408));
    mlxr_barrier(w);
    // layers.0.mlp.shared.gated
    if (launches) ++launches[8];
    gate_up_0314fb9f(w, b, (float *)(a + 11264), (const float *)t[3], t[25], t[26], (float *)(a + 31744));
    mlxr_barrier(w);
    // layers.0.mlp.shared.router_projected
    if (launches) ++launches[9];
    router_47f3c2ee(w, b, (float *)(a + 11264), (const float *)t[3], t[7], (float *)(a + 5120));
    mlxr_barrier(w);
    // layers.0.mlp.out_1
    if (launches) ++launches[10];
    experts_down_c4f2cc14(w, b, (float *)(a + 17408), t[5], (float *)(a + 11264), (int32_t *)(a + 5888), (float *)(a + 6144), (float *)(a + 36864));
    mlxr_barrier(w);
    // layers.0.mlp.out
    if (launches) ++launches[11];
    down_6e6397c2(w, b, (float *)(a + 31744), t[6], (float *)(a + 36864), (float *)(a + 5120), (float *)(a + 5376));
    mlxr_barrier(w);
    // layers.1.attention.qkv_projected
    if (launches) ++launches[2];
    qkv_507e562b(w, b, (float *)(a + 5376), (const float *)t[8], t[20], t[21], t[22], (float *)(a + 11520));
    mlxr_barrier(w);
    // layers.1.attention.cache_write
    if (launches) ++launches[13];
    cache_write_8e908584(w, b, (float *)(a + 11520), (float *)(a + 0), 1);
    mlxr_barrier(w);
    // layers.1.attention.attended
    if (launches) ++launches[14];
    attend_prefill_5fdf46fa(w, b, (float *)(a + 11520), (float *)(a + 0), 1, (float *)(a + 62720));
    mlxr_barrier(w);
    // layers.1.attention.out
    if (launches) ++launches[4];
    o_5f856a69(w, b, (float *)(a + 62720), t[9], (float *)(a + 5376), (float *)(a + 11520));
    mlxr_barrier(w);
    // layers.1.mlp.router_projected
    if (launches) ++launches[5];
    router_7923d5fa(w, b, (float *)(a + 11520), (const float *)t[10], t[11], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.routed
    if (launches) ++launches[6];
    route_7d6c5510(w, b, (float *)(a + 0), (int32_t *)(a + 768), (float *)(a + 1024));
    mlxr_barrier(w);
    // layers.1.mlp.experts.gated
    if (launches) ++launches[7];
    experts_gate_up_85f98fa5(w, b, (float *)(a + 11520), (const float *)t[10], t[27], t[28], (int32_t *)(a + 768), (float *)(a + 17664));
    mlxr_barrier(w);
    // layers.1.mlp.shared.gated
    if (launches) ++launches[8];
    gate_up_0314fb9f(w, b, (float *)(a + 11520), (const float *)t[10], t[29], t[30], (float *)(a + 1280));
    mlxr_barrier(w);
    // layers.1.mlp.shared.router_projected
    if (launches) ++launches[9];
    router_47f3c2ee(w, b, (float *)(a + 11520), (const float *)t[10], t[14], (float *)(a + 0));
    mlxr_barrier(w);
    // layers.1.mlp.out_1
    if (launches) ++launches[10];
    experts_down_c4f2cc14(w, b, (float *)(a + 17664), t[12], (float *)(a + 11520), (int32_t *)(a + 768), (float *)(a + 1024), (float *)(a + 32000));
    mlxr_barrier(w);
    // layers.1.mlp.out
    if (launches) ++launches[11];
    down_6e6397c2(w, b, (float *)(a + 1280), t[13], (float *)(a + 32000), (float *)(a + 0), (float *)(a + 6400));
    mlxr_barrier(w);
    // logits_of_all_tokens
    if (b->rows) {
        if (launches) ++launches[12];
        logits_9df983b8(w, b, (float *)(a + 6400), (const float *)t[15], t[16], b->logits);
    }
}

