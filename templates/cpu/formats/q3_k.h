// Q3_K: 256 columns: 16 times 16 numbers w of 3 bits with a 6-bit scale, over an f16: d * (scale - 32) * (w - 4).
//
// Packed (shared lines): 16 f16 | the scales (k_scales.h) | 8 x the numbers.
// Needs: k_scales.h
enum { Q3_K_BYTES = 110, Q3_K_STEP = 192, Q3_K_BODY = 192 + 8 * Q3_K_STEP };

MLXR_INLINE void q3_k_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, Q3_K_BODY, at);
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v d = f16_load(at->scales + 2 * MLXR_LANES * p);
        i32v v[3];
        read_k_fields(at->body, p, v);
        MLXR_UNROLL for (int s = 0; s < 16; s++) {
            f32_store(at->d[s] + MLXR_LANES * p, d * f32_of_i32(k_field(v, s) - 32));
        }
    }
}

MLXR_INLINE void q3_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    out->d[0] = f32_load(at->d[2 * s] + MLXR_LANES * part);
    out->d[1] = f32_load(at->d[2 * s + 1] + MLXR_LANES * part);
    unpack_numbers(3, at->body + 192 + Q3_K_STEP * s, part, out->w);
}

// native: 32 bytes of third bits (bit s of byte i is that of column 32 s + i), 64 of the low two (each byte holds those
// of four times 32 columns), 12 of scales, d. Of the scales, bytes 0-7 hold the low 4 bits (of s and s + 8), bytes 8-11
// the upper 2 (of s, s + 4, s + 8, s + 12).
MLXR_INLINE void q3_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        open_shared(dst, blocks, b, 2, Q3_K_BODY, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q3_K_BYTES), *scales = native + 96;
            uint32_t fields[16];
            for (int s = 0; s < 16; s++) {
                fields[s] = (scales[s % 8] >> 4 * (s / 8) & 15) | (scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4;
            }
            memcpy((uint8_t *)at.scales + 2 * row, native + 108, 2);
            pack_k_fields((uint8_t *)at.body, row, fields);
            for (int s = 0; s < 8; s++) {
                uint8_t *quants = (uint8_t *)at.body + 192 + Q3_K_STEP * s;
                uint32_t twos[8], thirds[8];
                for (int g = 0; g < 8; g++) {
                    twos[g] = dword_at(native + 32 + 32 * (s / 4), g) >> 2 * (s % 4) & 0x03030303;
                    thirds[g] = dword_at(native, g) >> s & 0x01010101;
                }
                pack_twos(quants, row, twos);
                pack_ones(quants + 128, row, thirds);
            }
        }
    }
}

MLXR_PANEL_FORMAT(q3_k, .columns = 256, .step = 2 * Q3_K_BYTES, .bits = 3, .bias = 4, .split = 1)
