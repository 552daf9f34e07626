// Q4_K: 256 columns: 8 times 32 numbers w of 4 bits with a scale and a minimum: d * w - m.
//
// Packed: the scales (k_scales.h) | 8 x 4 vectors of two groups.
// Needs: k_scales.h
enum { Q4_K_BYTES = 144, Q4_K_STEP = 256 };

MLXR_INLINE void q4_k_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    const uint8_t *packed = panel + (size_t)b * 16 * Q4_K_BYTES;
    at->body = packed + K_SCALES_BYTES;
    open_k_scales(packed, at);
}

MLXR_INLINE void q4_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    read_k_scales(at, s, part, out);
    unpack_numbers(4, at->body + Q4_K_STEP * s, part, out->w);
}

MLXR_INLINE void q4_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * Q4_K_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q4_K_BYTES);
            pack_k_scales(dst, row, native);
            for (int s = 0; s < 8; s++) {
                uint32_t nibbles[8];
                k_nibbles(native + 16, s, nibbles);
                pack_nibbles(dst + K_SCALES_BYTES + Q4_K_STEP * s, row, nibbles);
            }
        }
    }
}

MLXR_PANEL_FORMAT(q4_k, .columns = 256, .step = 2 * Q4_K_BYTES, .bits = 4, .minima = 1)
