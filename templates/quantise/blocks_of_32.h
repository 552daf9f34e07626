// Formats whose blocks have 32 elements. `importance` has a weight for each column of the row, or is NULL.

// How much the error of each of 32 elements counts: its importance, and more if it is large beside the row's others.
static void weigh(const float *x, const float *importance, float mean_square, int n, float *weights) {
    for (int j = 0; j < n; ++j) weights[j] = importance[j] * sqrtf(mean_square + x[j] * x[j]);
}

static float sum_of_squares(const float *x, int n) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += x[j] * x[j];
    return sum;
}

// Codes of 4 or 5 bits of multiples of a scale, about 0: q4_0 and q5_0.
static void symmetric_codes(const float *x, int half, const float *weights, uint8_t *codes, uint8_t *scale) {
    if (weights) {
        put_half(scale, fit_scale(32, half, x, weights, codes));
        return;
    }
    float greatest = 0, at = 0;
    for (int j = 0; j < 32; ++j)
        if (greatest < fabsf(x[j])) greatest = fabsf(x[j]), at = x[j];
    const float d = at / -half, inverse = d ? 1.0f / d : 0.0f;
    put_half(scale, d);
    for (int j = 0; j < 32; ++j) {
        const int code = (int8_t)(x[j] * inverse + (half + 0.5f));
        codes[j] = (uint8_t)(code < 2 * half - 1 ? code : 2 * half - 1);
    }
}

// Codes of 4 or 5 bits above a minimum: q4_1 and q5_1.
static void offset_codes(const float *x, int greatest, const float *weights, uint8_t *codes, uint8_t *scale) {
    if (weights) {
        float minimum;
        put_half(scale, fit_scale_and_minimum(32, greatest, x, weights, codes, &minimum, (trials){-0.9f, 0.05f, 36, 0}));
        put_half(scale + 2, -minimum);
        return;
    }
    float low = FLT_MAX, high = -FLT_MAX;
    for (int j = 0; j < 32; ++j) {
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    const float d = (high - low) / greatest, inverse = d ? 1.0f / d : 0.0f;
    put_half(scale, d);
    put_half(scale + 2, low);
    for (int j = 0; j < 32; ++j) {
        const int code = (int8_t)((x[j] - low) * inverse + 0.5f);
        codes[j] = (uint8_t)(code < greatest ? code : greatest);
    }
}

static void quantise_q8_0(const float *x, uint8_t *to) {
    float greatest = 0;
    for (int j = 0; j < 32; ++j)
        if (fabsf(x[j]) > greatest) greatest = fabsf(x[j]);
    const float d = greatest / 127, inverse = d ? 1.0f / d : 0.0f;
    put_half(to, d);
    for (int j = 0; j < 32; ++j) to[2 + j] = (uint8_t)(int8_t)roundf(x[j] * inverse);
}

static void quantise_mxfp4(const float *x, uint8_t *to) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float greatest = 0;
    uint8_t codes[32];
    for (int j = 0; j < 32; ++j)
        if (greatest < fabsf(x[j])) greatest = fabsf(x[j]);
    to[0] = greatest > 0 ? (uint8_t)(int)(floorf(log2f(greatest)) - 2 + 127) : 0;
    const uint32_t bits = to[0] < 2 ? 0x00200000u << to[0] : (uint32_t)(to[0] - 1) << 23;  // half of the scale
    float d;
    memcpy(&d, &bits, 4);
    for (int j = 0; j < 32; ++j) {
        int best = 0;
        float error = fabsf(0 * d - x[j]);
        for (int i = 1; i < 16; ++i) {
            const float other = fabsf(doubled[i] * d - x[j]);
            if (other < error) best = i, error = other;
        }
        codes[j] = (uint8_t)best;
    }
    pack_nibbles(codes, to + 1);
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static int nearest_iq4(float x) {
    if (x <= iq4_values[0]) return 0;
    if (x >= iq4_values[15]) return 15;
    int low = 0, high = 15;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (x < iq4_values[middle]) high = middle;
        else low = middle;
    }
    return x - iq4_values[low] < iq4_values[high] - x ? low : high;
}

// The scale of 32 numbers whose codes are places in iq4_values.
static float fit_iq4(const float *x, const float *weights) {
    float greatest = 0, at = 0;
    for (int j = 0; j < 32; ++j)
        if (fabsf(x[j]) > greatest) greatest = fabsf(x[j]), at = x[j];
    if (greatest < LEAST_MAXIMUM) return 0;
    float d = 0, best = 0;
    for (int step = -8; step <= 7; ++step) {
        // The first step is a scale by which the number farthest from 0 is the table's first.
        const float inverse = step < -7 ? 1 / (-at / iq4_values[0]) : (step + iq4_values[0]) / at;
        float products = 0, squares = 0;
        for (int j = 0; j < 32; ++j) {
            const float value = iq4_values[nearest_iq4(inverse * x[j])];
            products += weights[j] * value * x[j];
            squares += weights[j] * value * value;
        }
        if (step < -7) {
            d = squares > 0 ? products / squares : 0.f;
            best = d * products;
        } else if (squares > 0 && products * products > best * squares) {
            d = products / squares;
            best = d * products;
        }
    }
    return d;
}

static void quantise_iq4_nl(const float *x, const float *importance, uint8_t *to) {
    float weights[32];
    uint8_t codes[32];
    if (importance) weigh(x, importance, sum_of_squares(x, 32) * (2.f / 32), 32, weights);
    else
        for (int j = 0; j < 32; ++j) weights[j] = x[j] * x[j];
    const float d = fit_iq4(x, weights), inverse = d ? 1 / d : 0;
    put_half(to, d);
    for (int j = 0; j < 32; ++j) codes[j] = (uint8_t)nearest_iq4(inverse * x[j]);
    pack_nibbles(codes, to + 2);
}
