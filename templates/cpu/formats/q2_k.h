// Q2_K: 256 columns: 16 times 16 numbers w of 2 bits with a 4-bit scale and minimum, over two f16: d * w - m.
//
// Packed: 16 f16 d | 16 f16 dmin | 16 x 16 bytes (scale in the low half, minimum in the high one) | 8 x the numbers.
enum { Q2_K_BYTES = 84, Q2_K_STEP = 128 };

MLXR_INLINE void q2_k_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    const uint8_t *packed = panel + (size_t)b * 16 * Q2_K_BYTES;
    at->body = packed + 64 + 256;
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v d = f16_load(packed + 2 * MLXR_LANES * p), dmin = -f16_load(packed + 32 + 2 * MLXR_LANES * p);
        for (int s = 0; s < 16; s++) {
            i32v both = i32_load8((const int8_t *)packed + 64 + 16 * s + MLXR_LANES * p);
            f32_store(at->d[s] + MLXR_LANES * p, d * f32_of_i32(both & 15));
            f32_store(at->m[s] + MLXR_LANES * p, dmin * f32_of_i32(both >> 4 & 15));
        }
    }
}

MLXR_INLINE void q2_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    MLXR_UNROLL for (int h = 0; h < 2; h++) {
        out->d[h] = f32_load(at->d[2 * s + h] + MLXR_LANES * part);
        out->m[h] = f32_load(at->m[2 * s + h] + MLXR_LANES * part);
    }
    unpack_numbers(2, at->body + Q2_K_STEP * s, part, out->w);
}

// native: 16 bytes of scales, 64 of numbers (each byte holds those of four times 32 columns), d, dmin.
MLXR_INLINE void q2_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * Q2_K_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q2_K_BYTES);
            memcpy(dst + 2 * row, native + 80, 2);
            memcpy(dst + 32 + 2 * row, native + 82, 2);
            for (int s = 0; s < 16; s++) dst[64 + 16 * s + row] = native[s];
            for (int s = 0; s < 8; s++) {
                uint32_t twos[8];
                for (int g = 0; g < 8; g++) {
                    twos[g] = dword_at(native + 16 + 32 * (s / 4), g) >> 2 * (s % 4) & 0x03030303;
                }
                pack_twos(dst + 320 + Q2_K_STEP * s, row, twos);
            }
        }
    }
}

MLXR_PANEL_FORMAT(q2_k, .columns = 256, .step = 2 * Q2_K_BYTES, .bits = 2, .split = 1, .minima = 1)
