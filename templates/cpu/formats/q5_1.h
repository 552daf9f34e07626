// Q5_1: 32 columns are two f16 and 32 numbers w of 5 bits: d * w + m.
//
// Packed: 16 f16 d | 16 f16 m | the numbers.
// Needs: q5_bits.h
enum { Q5_1_BYTES = 24 };

MLXR_INLINE void q5_1_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    at->scales = panel + (size_t)b * 16 * Q5_1_BYTES;
    at->body = at->scales + 64;
}

MLXR_INLINE void q5_1_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    out->m[0] = out->m[1] = f16_load(at->scales + 32 + 2 * MLXR_LANES * part);
    unpack_numbers(5, at->body, part, out->w);
}

MLXR_INLINE void q5_1_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * Q5_1_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q5_1_BYTES);
            memcpy(dst + 2 * row, native, 2);
            memcpy(dst + 32 + 2 * row, native + 2, 2);
            pack_fives(dst + 64, row, native + 4);
        }
    }
}

MLXR_PANEL_FORMAT(q5_1, .columns = 32, .step = 16 * Q5_1_BYTES, .bits = 5, .minima = 1)
