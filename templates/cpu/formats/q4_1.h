// Q4_1: 32 columns are two f16 and 32 numbers w of 4 bits: d * w + m.
//
// Packed: 16 f16 d | 16 f16 m | 4 vectors of two groups, as the native bytes hold them.
enum { Q4_1_BYTES = 20 };

MLXR_INLINE void q4_1_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    at->scales = panel + (size_t)b * 16 * Q4_1_BYTES;
    at->body = at->scales + 64;
}

MLXR_INLINE void q4_1_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    out->m[0] = out->m[1] = f16_load(at->scales + 32 + 2 * MLXR_LANES * part);
    unpack_numbers(4, at->body, part, out->w);
}

MLXR_INLINE void q4_1_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * Q4_1_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q4_1_BYTES);
            memcpy(dst + 2 * row, native, 2);
            memcpy(dst + 32 + 2 * row, native + 2, 2);
            for (int g = 0; g < 4; g++) put_dword(dst + 64 + 64 * g + 4 * row, dword_at(native + 4, g));
        }
    }
}

MLXR_PANEL_FORMAT(q4_1, .columns = 32, .step = 16 * Q4_1_BYTES, .bits = 4, .minima = 1)
