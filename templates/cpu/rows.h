// Norms of rows and heads that no projection reads first, and the choice of experts.

// Columns [from, to) of y = residual + factor * norm(x), of a row of n. `factor` 0: none; weight, bias and
// residual: may be NULL.
MLXR_INLINE void mlxr_norm_columns(const float *x, mlxr_moments m, const float *weight, const float *bias,
                                   const float *residual, float factor, int from, int to, float *y) {
    const f32v mean = f32_set1(m.mean), scale = f32_set1(m.scale);
    for (int k = from; k < to; k += MLXR_LANES) {
        f32v v = (f32_load_at(x, k, to) - mean) * scale;
        if (weight) v *= f32_load_at(weight, k, to);
        if (bias) v += f32_load_at(bias, k, to);
        if (factor) v *= factor;
        if (residual) v += f32_load_at(residual, k, to);
        f32_store_at(y, k, to, v);
    }
}

// y = norm(x) of a head of n, by the root of its mean square. weight: may be NULL.
MLXR_INLINE void mlxr_norm_head(const float *x, const float *weight, int n, float eps, float *y) {
    mlxr_norm_columns(x, mlxr_moments_of(x, n, 0, eps), weight, NULL, NULL, 0.0f, 0, n, y);
}

// Columns [*from, *to) of n that part `part` of `parts` takes: whole sixteens.
MLXR_INLINE void mlxr_part(int n, int part, int parts, int *from, int *to) {
    *from = (int)((int64_t)(n / 16) * part / parts) * 16;
    *to = part == parts - 1 ? n : (int)((int64_t)(n / 16) * (part + 1) / parts) * 16;
}

enum { MLXR_SOFTMAX_TOPK, MLXR_TOPK_SOFTMAX, MLXR_SIGMOID };

// The greatest of n keys, the first one of equal ones; it becomes minus infinity. n is a multiple of 16; a key that may be
// taken is more than that.
MLXR_INLINE int mlxr_take_greatest(float *keys, int n) {
    f32v greatest = f32_load(keys);
    for (int i = MLXR_LANES; i < n; i += MLXR_LANES) greatest = f32_max(greatest, f32_load(keys + i));
    const float key = f32_greatest(greatest);
    int at = 0;
    while (at < n - 1 && keys[at] != key) at++;
    keys[at] = -__builtin_inff();
    return at;
}

// Leaves the `top` best of `groups` groups of n keys; the other keys become minus infinity. A group is judged by the sum of
// its `judged_by` greatest keys, 1 or 2; the first one of equal groups is better.
MLXR_INLINE void mlxr_keep_groups(float *keys, int n, int groups, int top, int judged_by) {
    enum { MOST = 32 };
    float judged[MOST];
    int kept[MOST] = {0};
    const int size = n / groups;
    for (int g = 0; g < groups; g++) {
        float first = -__builtin_inff(), second = first;
        for (int i = g * size; i < (g + 1) * size; i++) {
            second = keys[i] > first ? first : keys[i] > second ? keys[i] : second;
            first = keys[i] > first ? keys[i] : first;
        }
        judged[g] = judged_by == 2 ? first + second : first;
    }
    for (int k = 0; k < top; k++) {
        int best = -1;
        for (int g = 0; g < groups; g++)
            if (!kept[g] && (best < 0 || judged[g] > judged[best])) best = g;
        kept[best] = 1;
    }
    for (int i = 0; i < n; i++)
        if (!kept[i / size]) keys[i] = -__builtin_inff();
}

// The experts of one token from their n logits, best first, and their weights. All but the pointers are literals.
MLXR_INLINE void mlxr_route(const float *logits, const float *bias, int n, int top_k, int router, int normalise,
                            float scale, int groups, int top_groups, int judged_by, int32_t *experts, float *weights) {
    enum { MOST = 1024 };
    float scores[MOST], keys[MOST];
    const int padded = (n + 15) / 16 * 16;
    const float lowest = -3.0e38f;
    float largest = lowest, total = 0.0f;
    for (int i = 0; i < n; i++) largest = logits[i] > largest ? logits[i] : largest;
    for (int i = 0; i < padded; i += MLXR_LANES) {
        f32v x = i < n ? f32_load_at(logits, i, n) : f32_zero();
        f32v score = router == MLXR_SOFTMAX_TOPK ? f32_exp(x - largest) : router == MLXR_SIGMOID ? f32_sigmoid(x) : x;
        f32_store(scores + i, score);
    }
    if (router == MLXR_SOFTMAX_TOPK) {
        for (int i = 0; i < n; i++) total += scores[i];
        for (int i = 0; i < n; i++) scores[i] /= total;
    }
    // Without bias and groups the logits order the scores, and know no ties by rounding. Whatever they are, each expert has a key
    // above minus infinity until it is taken.
    for (int i = 0; i < padded; i++) {
        const float key = i >= n ? -__builtin_inff() : bias ? scores[i] + bias[i] : groups > 1 ? scores[i] : logits[i];
        keys[i] = i < n && !(key > lowest) ? lowest : key;
    }
    if (groups > 1) mlxr_keep_groups(keys, n, groups, top_groups, judged_by);
    total = 0.0f;
    for (int k = 0; k < top_k; k++) {
        experts[k] = mlxr_take_greatest(keys, padded);
        weights[k] = scores[experts[k]];
    }
    if (router == MLXR_TOPK_SOFTMAX) {
        largest = weights[0];
        for (int k = 1; k < top_k; k++) largest = weights[k] > largest ? weights[k] : largest;
        for (int k = 0; k < top_k; k++) weights[k] = f32_exp(f32_set1(weights[k] - largest))[0];
    }
    for (int k = 0; k < top_k; k++) total += weights[k];
    const float factor = (normalise || router == MLXR_TOPK_SOFTMAX ? 1.0f / total : 1.0f) * scale;
    for (int k = 0; k < top_k; k++) weights[k] *= factor;
}

// Counts n experts from the first one of this rank, which owns some; those of others become -1.
MLXR_INLINE void mlxr_own_experts(int32_t *experts, int n, int first, int owned) {
    for (int i = 0; i < n; i++) {
        const int own = experts[i] - first;
        experts[i] = own >= 0 && own < owned ? own : -1;
    }
}
