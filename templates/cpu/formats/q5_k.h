// Q5_K: 256 columns: 8 times 32 numbers w of 5 bits with a scale and a minimum: d * w - m.
//
// Packed: the scales (k_scales.h) | 8 x (4 vectors of two groups of the low 4 bits | a vector of the fifth: bit g of
// byte c is that of column 4 g + c).
enum { Q5_K_BYTES = 176, Q5_K_STEP = 256 + 64 };

MLXR_INLINE void q5_k_open(const uint8_t *panel, int b, mlxr_block *at) {
    const uint8_t *packed = panel + (size_t)b * 16 * Q5_K_BYTES;
    at->body = packed + K_SCALES_BYTES;
    open_k_scales(packed, at);
}

MLXR_INLINE void q5_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    const uint8_t *quants = at->body + Q5_K_STEP * s;
    u32v fifth = (u32v)i8_load(quants + 256 + 4 * MLXR_LANES * part);
    read_k_scales(at, s, part, out);
    unpack_nibbles(quants, part, out->w);
    MLXR_UNROLL for (int g = 0; g < 8; g++) {
        out->w[g] |= (i8v)(g < 4 ? fifth << ((4 - g) & 7) : fifth >> ((g - 4) & 7)) & 16;
    }
}

MLXR_INLINE void q5_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * Q5_K_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q5_K_BYTES);
            pack_k_scales(dst, row, native);
            for (int s = 0; s < 8; s++) {
                uint8_t *quants = dst + K_SCALES_BYTES + Q5_K_STEP * s;
                uint32_t nibbles[8], fifth = 0;
                k_nibbles(native + 48, s, nibbles);
                pack_nibbles(quants, row, nibbles);
                for (int g = 0; g < 8; g++) fifth |= (dword_at(native + 16, g) >> s & 0x01010101) << g;
                put_dword(quants + 256 + 4 * row, fifth);
            }
        }
    }
}
