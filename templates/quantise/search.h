// Searches for the scale of a group of numbers, with weights that say how much an error of each one counts.
//
// Source: ggml/src/ggml-quants.c of https://github.com/ggml-org/llama.cpp (MIT): the candidates, and the order in which
// they are tried and summed up, are its own; results have the same bits.

// Codes in [0, 2 half) of numbers code - half, and their scale, of numbers that may have any sign.
static float fit_scale(int n, int half, const float *x, const float *weights, uint8_t *codes) {
    float greatest = 0, at = 0;
    for (int i = 0; i < n; ++i)
        if (fabsf(x[i]) > greatest) greatest = fabsf(x[i]), at = x[i];
    if (greatest < LEAST_MAXIMUM) {
        memset(codes, 0, n);
        return 0;
    }
    float scale = 0, best = 0;
    for (int step = 0; step <= 19; ++step) {
        const int shift = step - 10;  // the first step is without a shift
        if (shift == 0) continue;
        const float inverse = step ? -(half + 0.1f * shift) / at : -half / at;
        float products = 0, squares = 0;
        for (int i = 0; i < n; ++i) {
            const int code = bounded(nearest(inverse * x[i]), -half, half - 1);
            products += weights[i] * x[i] * code;
            squares += weights[i] * code * code;
        }
        if (step && !(squares > 0 && products * products > best * squares)) continue;
        for (int i = 0; i < n; ++i) codes[i] = (uint8_t)(half + bounded(nearest(inverse * x[i]), -half, half - 1));
        scale = squares ? products / squares : 0.f;
        best = scale * products;
    }
    return scale;
}

// As fit_scale, with codes that are changed one by one as long as that pays; a number counts by its square.
static float fit_scale_stepwise(int n, int half, const float *x, uint8_t *codes) {
    int chosen[16];
    float greatest = 0, at = 0, products = 0, squares = 0;
    for (int i = 0; i < n; ++i)
        if (fabsf(x[i]) > greatest) greatest = fabsf(x[i]), at = x[i];
    if (greatest < LEAST_MAXIMUM) {
        memset(codes, 0, n);
        return 0;
    }
    const float inverse = -half / at;
    for (int i = 0; i < n; ++i) {
        const float weight = x[i] * x[i];
        chosen[i] = bounded(nearest(inverse * x[i]), -half, half - 1);
        products += weight * x[i] * chosen[i];
        squares += weight * chosen[i] * chosen[i];
    }
    for (int turn = 0, changed = 1; turn < 5 && changed; ++turn) {
        changed = 0;
        for (int i = 0; i < n; ++i) {
            const float weight = x[i] * x[i];
            float other_products = products - weight * x[i] * chosen[i];
            if (!(other_products > 0)) continue;
            float other_squares = squares - weight * chosen[i] * chosen[i];
            const int code = bounded(nearest(x[i] * other_squares / other_products), -half, half - 1);
            if (code == chosen[i]) continue;
            other_products += weight * x[i] * code;
            other_squares += weight * code * code;
            if (other_squares > 0 &&
                other_products * other_products * squares > products * products * other_squares) {
                chosen[i] = code, products = other_products, squares = other_squares, changed = 1;
            }
        }
    }
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)(chosen[i] + half);
    return squares > 0 ? products / squares : 0.f;
}

typedef struct {
    float first, step;  // what is added to the greatest code, at first and in each step
    int steps;
    int absolute;  // whether errors count by their size, not by their square
} trials;

static float error_of(int n, const float *x, const float *weights, const uint8_t *codes, float scale, float low, int absolute) {
    float error = 0;
    for (int i = 0; i < n; ++i) {
        float difference = scale * codes[i] + low - x[i];
        difference = absolute ? fabsf(difference) : difference * difference;
        error += weights[i] * difference;
    }
    return error;
}

// Codes in [0, greatest] of numbers scale * code - minimum, where the minimum is never below 0.
static float fit_scale_and_minimum(int n, int greatest, const float *x, const float *weights, uint8_t *codes, float *minimum,
                                   trials tried) {
    uint8_t others[32];
    float low = x[0], high = x[0], sum_w = weights[0], sum_x = weights[0] * x[0];
    for (int i = 1; i < n; ++i) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
        sum_w += weights[i];
        sum_x += weights[i] * x[i];
    }
    if (low > 0) low = 0;
    if (high == low) {
        memset(codes, 0, n);
        *minimum = -low;
        return 0;
    }
    float inverse = greatest / (high - low), scale = 1 / inverse;
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)bounded(nearest(inverse * (x[i] - low)), 0, greatest);
    float best = error_of(n, x, weights, codes, scale, low, tried.absolute);
    for (int step = 0; step <= tried.steps; ++step) {
        // The lowest number is that of the best fit so far, as the source has it.
        inverse = (tried.first + tried.step * step + greatest) / (high - low);
        float sum_l = 0, sum_l2 = 0, sum_xl = 0;
        for (int i = 0; i < n; ++i) {
            const int code = bounded(nearest(inverse * (x[i] - low)), 0, greatest);
            others[i] = (uint8_t)code;
            sum_l += weights[i] * code;
            sum_l2 += weights[i] * code * code;
            sum_xl += weights[i] * code * x[i];
        }
        const float determinant = sum_w * sum_l2 - sum_l * sum_l;
        if (!(determinant > 0)) continue;
        float new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        float new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if (new_low > 0) {
            new_low = 0;
            new_scale = sum_xl / sum_l2;
        }
        const float error = error_of(n, x, weights, others, new_scale, new_low, tried.absolute);
        if (error < best) {
            memcpy(codes, others, n);
            best = error, scale = new_scale, low = new_low;
        }
    }
    *minimum = -low;
    return scale;
}

// Codes up to `greatest` of numbers that are not negative, and their scale.
static float fit_positive(int n, int greatest, const float *x, const float *weights, uint8_t *codes) {
    float most = 0;
    for (int i = 0; i < n; ++i)
        if (x[i] > most) most = x[i];
    if (most < LEAST_MAXIMUM) {
        memset(codes, 0, n);
        return 0;
    }
    float inverse = greatest / most, scale = 1 / inverse, best = 0;
    for (int i = 0; i < n; ++i) {
        codes[i] = (uint8_t)nearest(inverse * x[i]);
        const float difference = x[i] - scale * codes[i];
        best += weights[i] * difference * difference;
    }
    for (int shift = -4; shift <= 4; ++shift) {
        if (shift == 0) continue;
        const float tried = (0.1f * shift + greatest) / most, of_tried = 1 / tried;
        float error = 0;
        for (int i = 0; i < n; ++i) {
            const int code = nearest(tried * x[i]);
            const float difference = x[i] - of_tried * (code < greatest ? code : greatest);
            error += weights[i] * difference * difference;
        }
        if (error < best) best = error, inverse = tried;
    }
    float products = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
        int code = nearest(inverse * x[i]);
        if (code > greatest) code = greatest;
        codes[i] = (uint8_t)code;
        products += weights[i] * x[i] * code;
        squares += weights[i] * code * code;
    }
    for (int turn = 0, changed = 1; turn < 5 && changed; ++turn) {
        changed = 0;
        for (int i = 0; i < n; ++i) {
            float other_products = products - weights[i] * x[i] * codes[i];
            float other_squares = squares - weights[i] * codes[i] * codes[i];
            if (!(other_products > 0 && other_squares > 0)) continue;
            int code = nearest(x[i] * other_squares / other_products);
            if (code > greatest) code = greatest;
            if (code == codes[i]) continue;
            other_products += weights[i] * x[i] * code;
            other_squares += weights[i] * code * code;
            if (other_products * other_products * squares > products * products * other_squares) {
                codes[i] = (uint8_t)code, products = other_products, squares = other_squares, changed = 1;
            }
        }
    }
    return squares > 0 ? products / squares : 0.f;
}
