// MXFP4: 32 columns are an exponent of 8 bits and 32 floats of 4 bits: 2^(e - 128) * values[w]. The exponent lies
// before each 16 bytes, of which byte i has columns i and i + 16.
//
// Packed (shared lines): 16 exponents | 4 vectors of two groups.
enum { MXFP4_BYTES = 17, MXFP4_BODY = 256 };

static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

MLXR_INLINE void mxfp4_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 1, MXFP4_BODY, at);
}

MLXR_INLINE void mxfp4_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    i32v e = i32_load8((const int8_t *)at->scales + MLXR_LANES * part) & 255;
    i32v least = i32_select(e == 0, i32_set1(0x00200000), i32_set1(0x00400000));  // subnormal numbers
    out->d[0] = out->d[1] = f32_of_bits(i32_select(e < 2, least, (e - 1) << 23));
    unpack_numbers(4, at->body, part, out->w);
}

MLXR_INLINE void mxfp4_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        mxfp4_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, MXFP4_BYTES);
            ((uint8_t *)at.scales)[row] = native[0];
            for (int g = 0; g < 4; g++) put_dword((uint8_t *)at.body + 64 * g + 4 * row, dword_at(native + 1, g));
        }
    }
}

MLXR_PANEL_FORMAT(mxfp4, .columns = 32, .step = 16 * MXFP4_BYTES, .bits = 4, .values = mxfp4_values)
