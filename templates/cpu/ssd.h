// The scan of Mamba-2: see ssd.jinja.

// log(1 + e^x) to 2 ulp. With u = e^-|x| and s = u / (2 + u), at most 1/3: log(1 + u) = 2 (s + s^3/3 + s^5/5 + ...).
MLXR_INLINE f32v ssd_softplus(f32v x) {
    const f32v u = f32_exp(-f32_abs(x)), s = u / (u + 2.0f), t = s * s;
    f32v p = t * (1.0f / 15) + 1.0f / 13;
    p = p * t + 1.0f / 11;
    p = p * t + 1.0f / 9;
    p = p * t + 1.0f / 7;
    p = p * t + 1.0f / 5;
    p = p * t + 1.0f / 3;
    const f32v log = f32_rounded(p * t * s + s);
    return f32_max(f32_zero(), x) + (log + log);
}

// dt and decays of a head for n tokens, up to 16. raw: the first one's, each `stride` after the one before.
MLXR_INLINE void ssd_steps(const float *raw, int stride, int n, float bias, float a, float least, float most, float *dt,
                           float *decay) {
    for (int i = 0; i < n; i++) dt[i] = raw[(size_t)i * (size_t)stride];
    for (int i = n; i < 16; i++) dt[i] = 0.0f;
    for (int i = 0; i < n; i += MLXR_LANES) {
        f32v v = ssd_softplus(f32_load(dt + i) + bias);
        v = f32_min(f32_set1(most), f32_max(f32_set1(least), v));
        f32_store(dt + i, v);
        f32_store(decay + i, f32_exp(v * a));
    }
}

// A token: to = decay from + x B^T of `rows` rows of n, up to MLXR_LANES; returns to C. Products with x are rounded, so
// that all compilers add the same numbers.
MLXR_INLINE f32v ssd_rows(const float *from, float *to, int rows, int n, const float *x, float decay, const float *b,
                          const float *c) {
    f32v sums[MLXR_LANES];
    MLXR_UNROLL for (int r = 0; r < MLXR_LANES; r++) sums[r] = f32_zero();
    for (int k = 0; k < n; k += MLXR_LANES) {
        const f32v own_b = f32_load_at(b, k, n), own_c = f32_load_at(c, k, n);
        MLXR_UNROLL for (int r = 0; r < MLXR_LANES; r++) {
            if (r >= rows) break;
            const f32v before = f32_load_at(from + (size_t)r * (size_t)n, k, n);
            const f32v s = f32_fma(before, f32_set1(decay), f32_rounded(own_b * x[r]));
            f32_store_at(to + (size_t)r * (size_t)n, k, n, s);
            sums[r] = f32_fma(s, own_c, sums[r]);
        }
    }
    return f32_sums(sums);
}

// The same of `rows` rows, up to 16, and what they give: y = to C + d x, times silu(gate) if that is not NULL. dt: the
// token's. A literal n lets compilers leave out the ends.
MLXR_INLINE void ssd_token(const float *from, float *to, int rows, int n, const float *x, float dt, float decay,
                           const float *b, const float *c, float d, const float *gate, float *y) {
    float scaled[16];
    for (int r = 0; r < rows; r += MLXR_LANES) f32_store(scaled + r, f32_load_at(x, r, rows) * dt);
    for (int r = 0; r < rows; r += MLXR_LANES) {
        const size_t at = (size_t)r * (size_t)n;
        f32v out = rows - r >= MLXR_LANES ? ssd_rows(from + at, to + at, MLXR_LANES, n, scaled + r, decay, b, c)
                                          : ssd_rows(from + at, to + at, rows - r, n, scaled + r, decay, b, c);
        out += f32_rounded(f32_load_at(x, r, rows) * d);
        if (gate) out *= f32_silu(f32_load_at(gate, r, rows));
        f32_store_at(y, r, rows, out);
    }
}

// Channels [first, last) of the convolution of a token, through silu. past: each one's `taps` - 1 inputs before, or NULL for
// zeros; next, unless NULL, gets the newest of them. The sums are those of causal_conv.jinja: vectors of channels.
MLXR_INLINE void ssd_convolve(const float *x, const float *weight, const float *bias, int taps, int first, int last,
                              const float *past, float *next, float *y) {
    for (int c = first; c < last; c += MLXR_LANES) {
        const int n = last - c < MLXR_LANES ? last - c : MLXR_LANES;
        f32v sum = bias ? f32_load_at(bias, c, last) : f32_zero();
        for (int j = 0; j < taps; j++) {
            float w[MLXR_LANES] = {0}, value[MLXR_LANES] = {0};
            for (int i = 0; i < n; i++) {
                const size_t at = (size_t)(c + i) * (size_t)(taps - 1) + (size_t)j;
                w[i] = weight[(size_t)(c + i) * (size_t)taps + (size_t)j];
                value[i] = j == taps - 1 ? x[c + i] : past ? past[at] : 0.0f;
                if (next && j) next[at - 1] = value[i];
            }
            sum = f32_fma(f32_load(w), f32_load(value), sum);
        }
        f32_store_at(y, c, last, f32_silu(sum));
    }
}
