// Formats whose blocks have 256 elements, in groups of 16 or 32 whose scales are codes themselves.

static const float *importance_at(const float *importance, int start) { return importance ? importance + start : NULL; }

// Scales and minima of 8 groups of 32, 6 bits each.
static void pack_six_bits(const uint8_t *scales, const uint8_t *minima, uint8_t *to) {
    for (int j = 0; j < 8; ++j) {
        if (j < 4) {
            to[j] = scales[j];
            to[j + 4] = minima[j];
        } else {
            to[j + 4] = (uint8_t)((scales[j] & 15) | (minima[j] & 15) << 4);
            to[j - 4] |= (uint8_t)(scales[j] >> 4 << 6);
            to[j] |= (uint8_t)(minima[j] >> 4 << 6);
        }
    }
}

static void unpack_six_bits(const uint8_t *from, int j, uint8_t *scale, uint8_t *minimum) {
    if (j < 4) {
        *scale = from[j] & 63;
        *minimum = from[j + 4] & 63;
    } else {
        *scale = (uint8_t)((from[j + 4] & 15) | from[j - 4] >> 6 << 4);
        *minimum = (uint8_t)(from[j + 4] >> 4 | from[j] >> 6 << 4);
    }
}

// Codes of the scales of `groups` groups, up to `greatest`, and the scale of these; negative ones wrap as in the source.
static float scale_codes(const float *scales, int groups, int greatest, uint8_t *codes) {
    float most = 0;
    for (int j = 0; j < groups; ++j)
        if (scales[j] > most) most = scales[j];
    const float inverse = most > 0 ? greatest / most : 0.f;
    for (int j = 0; j < groups; ++j) codes[j] = (uint8_t)nearest(inverse * scales[j]);
    return most > 0 ? most / greatest : 0.f;
}

// Codes of a group, once its scale and minimum are known; those that are there stay if the scale is 0.
static void code_group(const float *x, int n, float scale, float minimum, int greatest, uint8_t *codes) {
    if (!scale) return;
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)bounded(nearest((x[i] + minimum) / scale), 0, greatest);
}

// q4_k and q5_k: 8 groups of 32 with a scale and a minimum. The header is 16 bytes.
static void groups_of_32(const float *x, const float *importance, int greatest, uint8_t *to, uint8_t *codes) {
    float weights[32], sums[8], minima[8], scales[8];
    uint8_t of_scales[8], of_minima[8];
    const float mean_square = 2 * sum_of_squares(x, 256) / 256;
    for (int j = 0; j < 8; ++j) {
        const float *part = x + 32 * j;
        if (importance) {
            weigh(part, importance + 32 * j, mean_square, 32, weights);
        } else {
            const float size = sqrtf(sum_of_squares(part, 32) / 32);
            for (int l = 0; l < 32; ++l) weights[l] = size + fabsf(part[l]);
        }
        sums[j] = 0;
        for (int l = 0; l < 32; ++l) sums[j] += weights[l];
        const trials tried = importance       ? (trials){-0.9f, 0.05f, 36, 0}
                             : greatest == 15 ? (trials){-1.f, 0.1f, 20, 0}
                                              : (trials){-0.5f, 0.1f, 15, 0};
        scales[j] = fit_scale_and_minimum(32, greatest, part, weights, codes + 32 * j, &minima[j], tried);
    }
    if (importance) {
        put_half(to, fit_positive(8, 63, scales, sums, of_scales));
        put_half(to + 2, fit_positive(8, 63, minima, sums, of_minima));
    } else {
        put_half(to, scale_codes(scales, 8, 63, of_scales));
        put_half(to + 2, scale_codes(minima, 8, 63, of_minima));
    }
    if (!importance || greatest == 31)
        for (int j = 0; j < 8; ++j) {
            if (of_scales[j] > 63) of_scales[j] = 63;
            if (of_minima[j] > 63) of_minima[j] = 63;
        }
    pack_six_bits(of_scales, of_minima, to + 4);
    for (int j = 0; j < 8; ++j) {
        uint8_t scale, minimum;
        unpack_six_bits(to + 4, j, &scale, &minimum);
        code_group(x + 32 * j, 32, get_half(to) * scale, get_half(to + 2) * minimum, greatest, codes + 32 * j);
    }
}

// Of each 64 codes, byte j has the lower 4 bits of codes j and j + 32.
static void pack_halves(const uint8_t *codes, uint8_t *to) {
    for (int part = 0; part < 4; ++part)
        for (int j = 0; j < 32; ++j) {
            const uint8_t *c = codes + 64 * part + j;
            to[32 * part + j] = (uint8_t)((c[0] & 15) | (c[32] & 15) << 4);
        }
}

static void quantise_q4_k(const float *x, const float *importance, uint8_t *to) {
    uint8_t codes[256];
    groups_of_32(x, importance, 15, to, codes);
    pack_halves(codes, to + 16);
}

static void quantise_q5_k(const float *x, const float *importance, uint8_t *to) {
    uint8_t codes[256];
    groups_of_32(x, importance, 31, to, codes);
    memset(to + 16, 0, 32);
    for (int j = 0; j < 256; ++j) to[16 + j % 32] |= (uint8_t)(codes[j] >> 4 << j / 32);
    pack_halves(codes, to + 48);
}

static void quantise_q2_k(const float *x, const float *importance, uint8_t *to) {
    float weights[16], sums[16], minima[16], scales[16];
    uint8_t codes[256], of_scales[16], of_minima[16];
    const float mean_square = sum_of_squares(x, 256) / 256;
    for (int j = 0; j < 16; ++j) {
        const float *part = x + 16 * j;
        if (importance) weigh(part, importance + 16 * j, mean_square, 16, weights);
        else
            for (int l = 0; l < 16; ++l) weights[l] = fabsf(part[l]);
        sums[j] = 0;
        for (int l = 0; l < 16; ++l) sums[j] += weights[l];
        const trials tried = importance ? (trials){-0.9f, 0.05f, 36, 0} : (trials){-0.5f, 0.1f, 15, 1};
        scales[j] = fit_scale_and_minimum(16, 3, part, weights, codes + 16 * j, &minima[j], tried);
    }
    float d, m;
    if (importance) {
        d = fit_positive(16, 15, scales, sums, of_scales);
        m = fit_positive(16, 15, minima, sums, of_minima);
    } else {
        d = scale_codes(scales, 16, 15, of_scales);
        m = scale_codes(minima, 16, 15, of_minima);
    }
    put_half(to + 80, d);
    put_half(to + 82, m);
    for (int j = 0; j < 16; ++j) {
        to[j] = (uint8_t)(of_scales[j] | of_minima[j] << 4);
        code_group(x + 16 * j, 16, get_half(to + 80) * (to[j] & 15), get_half(to + 82) * (to[j] >> 4), 3, codes + 16 * j);
    }
    pack_pairs(codes, to + 16);
}

// q3_k: 16 groups of 16 whose scales have 6 bits with a sign.
static void quantise_q3_k(const float *x, const float *importance, uint8_t *to) {
    float weights[16], sums[16], scales[16], most = 0, at = 0, d = 0;
    uint8_t codes[256], of_scales[16] = {0};
    uint8_t *mask = to, *pairs = to + 32, *packed = to + 96;
    const float mean_square = 2 * sum_of_squares(x, 256) / 256;
    for (int j = 0; j < 16; ++j) {
        const float *part = x + 16 * j;
        if (importance) {
            weigh(part, importance + 16 * j, mean_square, 16, weights);
            sums[j] = 0;
            for (int l = 0; l < 16; ++l) sums[j] += weights[l];
            scales[j] = fit_scale(16, 4, part, weights, codes + 16 * j);
        } else {
            scales[j] = fit_scale_stepwise(16, 4, part, codes + 16 * j);
        }
        if (fabsf(scales[j]) > most) most = fabsf(scales[j]), at = scales[j];
    }
    if (importance) {
        d = fit_scale(16, 32, scales, sums, of_scales);
    } else if (at) {
        const float inverse = -32.f / at;
        for (int j = 0; j < 16; ++j) of_scales[j] = (uint8_t)(32 + bounded((int8_t)nearest(inverse * scales[j]), -32, 31));
        d = 1 / inverse;
    }
    put_half(to + 108, d);
    memset(packed, 0, 12);
    for (int j = 0; j < 16; ++j) {
        packed[j % 8] |= (uint8_t)((of_scales[j] & 15) << (j < 8 ? 0 : 4));
        packed[8 + j % 4] |= (uint8_t)(of_scales[j] >> 4 << 2 * (j / 4));
        const float scale = get_half(to + 108) * (of_scales[j] - 32);
        if (!scale) continue;
        for (int i = 16 * j; i < 16 * j + 16; ++i) codes[i] = (uint8_t)(4 + bounded(nearest(x[i] / scale), -4, 3));
    }
    memset(mask, 0, 32);
    for (int j = 0; j < 256; ++j) {
        if (codes[j] > 3) {
            mask[j % 32] |= (uint8_t)(1 << j / 32);
            codes[j] -= 4;
        }
    }
    pack_pairs(codes, pairs);
}

static void quantise_q6_k(const float *x, const float *importance, uint8_t *to) {
    float squares[16], scales[16], most = 0, at = 0;
    uint8_t codes[256], *low = to, *high = to + 128;
    int8_t *of_scales = (int8_t *)to + 192;
    for (int j = 0; j < 16; ++j) {
        for (int l = 0; l < 16; ++l) squares[l] = x[16 * j + l] * x[16 * j + l];
        scales[j] = fit_scale(16, 32, x + 16 * j, importance ? importance + 16 * j : squares, codes + 16 * j);
        if (fabsf(scales[j]) > most) most = fabsf(scales[j]), at = scales[j];
    }
    memset(to, 0, 210);
    if (most < LEAST_MAXIMUM) return;
    const float inverse = -128.f / at;
    put_half(to + 208, 1 / inverse);
    for (int j = 0; j < 16; ++j) {
        const int code = nearest(inverse * scales[j]);
        of_scales[j] = (int8_t)(code < 127 ? code : 127);
        const float scale = get_half(to + 208) * of_scales[j];
        if (!scale) continue;
        for (int i = 16 * j; i < 16 * j + 16; ++i) codes[i] = (uint8_t)(32 + bounded(nearest(x[i] / scale), -32, 31));
    }
    for (int part = 0; part < 2; ++part)
        for (int j = 0; j < 32; ++j) {
            const uint8_t *c = codes + 128 * part + j;
            low[64 * part + j] = (uint8_t)((c[0] & 15) | (c[64] & 15) << 4);
            low[64 * part + j + 32] = (uint8_t)((c[32] & 15) | (c[96] & 15) << 4);
            high[32 * part + j] = (uint8_t)(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
        }
}

static void quantise_iq4_xs(const float *x, const float *importance, uint8_t *to) {
    float weights[32], scales[8], most = 0, at = 0;
    uint8_t codes[32], *low = to + 4;
    uint16_t high = 0;
    const float mean_square = sum_of_squares(x, 256) * (2.f / 256);
    for (int j = 0; j < 8; ++j) {
        const float *part = x + 32 * j;
        if (importance) weigh(part, importance + 32 * j, mean_square, 32, weights);
        else
            for (int l = 0; l < 32; ++l) weights[l] = part[l] * part[l];
        scales[j] = fit_iq4(part, weights);
        if (fabsf(scales[j]) > most) most = fabsf(scales[j]), at = scales[j];
    }
    const float d = -at / 32, inverse = d ? 1 / d : 0.f;
    put_half(to, d);
    memset(low, 0, 4);
    for (int j = 0; j < 8; ++j) {
        const int code = bounded(nearest(inverse * scales[j]), -32, 31);
        const float scale = d * code, of_scale = scale ? 1 / scale : 0.f;
        for (int l = 0; l < 32; ++l) codes[l] = (uint8_t)nearest_iq4(of_scale * x[32 * j + l]);
        pack_nibbles(codes, to + 8 + 16 * j);
        low[j / 2] |= (uint8_t)(((code + 32) & 15) << 4 * (j % 2));
        high |= (uint16_t)((code + 32) >> 4 << 2 * j);
    }
    memcpy(to + 2, &high, 2);
}
