// Q4_0: 32 columns are an f16 and 32 numbers w of 4 bits: d * (w - 8).
//
// Packed (shared lines): 16 f16 | 4 vectors of two groups. A native byte i holds columns i and i + 16: groups g and
// g + 4 already.
enum { Q4_0_BYTES = 18, Q4_0_BODY = 256 };

MLXR_INLINE void q4_0_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, Q4_0_BODY, at);
}

MLXR_INLINE void q4_0_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    unpack_numbers(4, at->body, part, out->w);
}

MLXR_INLINE void q4_0_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        q4_0_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q4_0_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native, 2);
            for (int g = 0; g < 4; g++) put_dword((uint8_t *)at.body + 64 * g + 4 * row, dword_at(native + 2, g));
        }
    }
}

MLXR_PANEL_FORMAT(q4_0, .columns = 32, .step = 16 * Q4_0_BYTES, .bits = 4, .bias = 8)
