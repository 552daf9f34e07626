// Q5_0: 32 columns are an f16 and 32 numbers w of 5 bits: d * (w - 16).
//
// Packed (shared lines): 16 f16 | the numbers.
// Needs: q5_bits.h
enum { Q5_0_BYTES = 22, Q5_0_BODY = 320 };

MLXR_INLINE void q5_0_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, Q5_0_BODY, at);
}

MLXR_INLINE void q5_0_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    unpack_numbers(5, at->body, part, out->w);
}

MLXR_INLINE void q5_0_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        q5_0_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q5_0_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native, 2);
            pack_fives((uint8_t *)at.body, row, native + 2);
        }
    }
}

MLXR_PANEL_FORMAT(q5_0, .columns = 32, .step = 16 * Q5_0_BYTES, .bits = 5, .bias = 16)
