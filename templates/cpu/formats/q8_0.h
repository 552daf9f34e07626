// Q8_0: 32 columns are an f16 and 32 signed bytes: d * w.
//
// Packed (pairs): 16 f16 | 8 groups of 16 x 4 bytes.
enum { Q8_0_BYTES = 34, Q8_0_BODY = 512 };

MLXR_INLINE void q8_0_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_pair(panel, blocks, b, Q8_0_BODY, at);
}

MLXR_INLINE void q8_0_read(const mlxr_block *at, int part, mlxr_weights *out) {
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    MLXR_UNROLL for (int g = 0; g < 8; g++) out->w[g] = i8_load(at->body + 64 * g + 4 * MLXR_LANES * part);
}

MLXR_INLINE void q8_0_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        q8_0_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q8_0_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native, 2);
            for (int g = 0; g < 8; g++) put_dword((uint8_t *)at.body + 64 * g + 4 * row, dword_at(native + 2, g));
        }
    }
}
