// Q8_0: 32 columns are an f16 and 32 signed bytes: d * w.
//
// Packed (shared lines): 16 f16 | the bytes.
#define MLXR_HAS_Q8_0
enum { Q8_0_BYTES = 34, Q8_0_BODY = 512 };

MLXR_INLINE void q8_0_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, Q8_0_BODY, at);
}

MLXR_INLINE void q8_0_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    unpack_numbers(8, at->body, part, out->w);
}

MLXR_INLINE void q8_0_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        q8_0_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q8_0_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native, 2);
            pack_numbers(8, (uint8_t *)at.body, row, native + 2);
        }
    }
}

MLXR_PANEL_FORMAT(q8_0, .columns = 32, .step = 16 * Q8_0_BYTES, .bits = 8)
