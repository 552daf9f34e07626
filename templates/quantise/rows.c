// Quantises rows of floats to GGUF's block formats, by their numbers in files. Returns whether it knows the format.

enum {Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20,
      IQ4_XS = 23, MXFP4 = 39};

// q4_0, q4_1, q5_0, q5_1: what follows the scale (and the minimum) is the fifth bits, then the lower four.
static uint8_t *simple_block(int format, const float *x, const float *importance, float mean_square, uint8_t *to) {
    float weights[32];
    uint8_t codes[32];
    const int has_minimum = format == Q4_1 || format == Q5_1, has_fifth = format == Q5_0 || format == Q5_1;
    if (importance) weigh(x, importance, mean_square, 32, weights);
    const int codes_below = has_fifth ? 32 : 16;
    if (has_minimum) offset_codes(x, codes_below - 1, importance ? weights : NULL, codes, to);
    else symmetric_codes(x, codes_below / 2, importance ? weights : NULL, codes, to);
    to += has_minimum ? 4 : 2;
    if (has_fifth) {
        pack_fifth_bits(codes, to);
        to += 4;
    }
    pack_nibbles(codes, to);
    return to + 16;
}

// Rows of `columns` numbers, one after the other; `importance` has one weight for each column, or is NULL.
__attribute__((visibility("default"))) int mlxr_quantise(int format, const float *x, uint8_t *to, int64_t rows, int64_t columns,
                                                         const float *importance) {
    for (int64_t row = 0; row < rows; ++row, x += columns) {
        const float mean_square = importance && format < Q8_0 ? sum_of_squares(x, (int)columns) / columns : 0;
        const int elements = format == Q8_0 || format < Q8_0 || format == IQ4_NL || format == MXFP4 ? 32 : 256;
        for (int64_t i = 0; i < columns; i += elements) {
            const float *part = x + i, *weights = importance_at(importance, (int)i);
            switch (format) {
            case Q4_0: case Q4_1: case Q5_0: case Q5_1: to = simple_block(format, part, weights, mean_square, to); break;
            case Q8_0: quantise_q8_0(part, to); to += 34; break;
            case Q2_K: quantise_q2_k(part, weights, to); to += 84; break;
            case Q3_K: quantise_q3_k(part, weights, to); to += 110; break;
            case Q4_K: quantise_q4_k(part, weights, to); to += 144; break;
            case Q5_K: quantise_q5_k(part, weights, to); to += 176; break;
            case Q6_K: quantise_q6_k(part, weights, to); to += 210; break;
            case IQ4_NL: quantise_iq4_nl(part, weights, to); to += 18; break;
            case IQ4_XS: quantise_iq4_xs(part, weights, to); to += 136; break;
            case MXFP4: quantise_mxfp4(part, to); to += 17; break;
            default: return 0;
            }
        }
    }
    return 1;
}
