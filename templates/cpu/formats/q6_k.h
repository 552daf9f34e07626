// Q6_K: 256 columns: 16 times 16 numbers w of 6 bits with a signed scale, over an f16: d * (w - 32).
//
// Packed (shared lines): 16 f16 | 16 x 16 scales | 8 x the numbers.
enum { Q6_K_BYTES = 210, Q6_K_STEP = 256 + 128, Q6_K_BODY = 256 + 8 * Q6_K_STEP };

MLXR_INLINE void q6_k_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, Q6_K_BODY, at);
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v d = f16_load(at->scales + 2 * MLXR_LANES * p);
        for (int s = 0; s < 16; s++) {
            i32v scale = i32_load8((const int8_t *)at->body + 16 * s + MLXR_LANES * p);
            f32_store(at->d[s] + MLXR_LANES * p, d * f32_of_i32(scale));
        }
    }
}

MLXR_INLINE void q6_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    out->d[0] = f32_load(at->d[2 * s] + MLXR_LANES * part);
    out->d[1] = f32_load(at->d[2 * s + 1] + MLXR_LANES * part);
    unpack_numbers(6, at->body + 256 + Q6_K_STEP * s, part, out->w);
}

MLXR_INLINE void q6_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        open_shared(dst, blocks, b, 2, Q6_K_BODY, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q6_K_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native + 208, 2);
            for (int s = 0; s < 16; s++) ((uint8_t *)at.body)[16 * s + row] = native[192 + s];
            for (int s = 0; s < 8; s++) {
                // In each half (4 times 32 columns) the first and third times 32 share 32 bytes for the low bits, the
                // second and fourth too, and all four 32 bytes for the upper ones.
                const uint8_t *low = native + 64 * (s / 4) + 32 * (s & 1), *upper = native + 128 + 32 * (s / 4);
                uint8_t *quants = (uint8_t *)at.body + 256 + Q6_K_STEP * s;
                uint32_t nibbles[8], twos[8];
                for (int g = 0; g < 8; g++) {
                    nibbles[g] = dword_at(low, g) >> 4 * (s >> 1 & 1) & 0x0f0f0f0f;
                    twos[g] = dword_at(upper, g) >> 2 * (s & 3) & 0x03030303;
                }
                pack_nibbles(quants, row, nibbles);
                pack_twos(quants + 256, row, twos);
            }
        }
    }
}

MLXR_PANEL_FORMAT(q6_k, .columns = 256, .step = 2 * Q6_K_BYTES, .bits = 6, .bias = 32, .split = 1)
