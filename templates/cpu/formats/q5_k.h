// Q5_K: 256 columns: 8 times 32 numbers w of 5 bits with a scale and a minimum: d * w - m.
//
// Packed: the scales (k_scales.h) | 8 x the numbers.
// Needs: k_scales.h
enum { Q5_K_BYTES = 176, Q5_K_STEP = 256 + 64 };

MLXR_INLINE void q5_k_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    const uint8_t *packed = panel + (size_t)b * 16 * Q5_K_BYTES;
    at->body = packed + K_SCALES_BYTES;
    open_k_scales(packed, at);
}

MLXR_INLINE void q5_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    read_k_scales(at, s, part, out);
    unpack_numbers(5, at->body + Q5_K_STEP * s, part, out->w);
}

MLXR_INLINE void q5_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * Q5_K_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q5_K_BYTES);
            pack_k_scales(dst, row, native);
            for (int s = 0; s < 8; s++) {
                uint8_t *quants = dst + K_SCALES_BYTES + Q5_K_STEP * s;
                uint32_t nibbles[8], fifths[8];
                k_nibbles(native + 48, s, nibbles);
                for (int g = 0; g < 8; g++) fifths[g] = dword_at(native + 16, g) >> s & 0x01010101;
                pack_nibbles(quants, row, nibbles);
                pack_ones(quants + 256, row, fifths);
            }
        }
    }
}

MLXR_PANEL_FORMAT(q5_k, .columns = 256, .step = 2 * Q5_K_BYTES, .bits = 5, .minima = 1)
