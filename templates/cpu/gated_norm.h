// y = norm(x) * act(gate), or norm(x * act(gate)) if `gate_first`, of n columns. eps 0: no norm; weight: may be NULL.
// y may be x.
MLXR_INLINE void mlxr_gated_norm(const float *x, const float *gate, const float *weight, int n, float eps, int silu,
                                 int gate_first, float *y) {
    if (gate_first) {
        for (int k = 0; k < n; k += MLXR_LANES) {
            const f32v z = f32_load_at(gate, k, n);
            f32_store_at(y, k, n, f32_load_at(x, k, n) * (silu ? f32_silu(z) : f32_sigmoid(z)));
        }
        x = y;
    }
    const f32v scale = f32_set1(eps > 0.0f ? mlxr_moments_of(x, n, 0, eps).scale : 1.0f);
    for (int k = 0; k < n; k += MLXR_LANES) {
        f32v v = f32_load_at(x, k, n) * scale;
        if (weight) v *= f32_load_at(weight, k, n);
        if (!gate_first) {
            const f32v z = f32_load_at(gate, k, n);
            v *= silu ? f32_silu(z) : f32_sigmoid(z);
        }
        f32_store_at(y, k, n, v);
    }
}
