// MXFP4: 32 columns are an exponent of 8 bits and 32 floats of 4 bits: 2^(e - 128) * values[w]. GGUF has the exponent
// before each 16 bytes, byte i of columns i and i + 16; MLX has exponents in a plane of their own, and byte i of
// columns 2 i and 2 i + 1.
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

MLXR_INLINE void mxfp4_mlx_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    mxfp4_open(panel, blocks, b, at);
}

// MLX reads the last exponent as infinity, GGUF as the power of two that is next.
MLXR_INLINE void mxfp4_mlx_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    mxfp4_read(at, s, part, out);
    i32v last = i32_load8((const int8_t *)at->scales + MLXR_LANES * part) == -1;
    out->d[0] = out->d[1] = f32_of_bits(i32_select(last, i32_set1(0x7f800000), f32_bits(out->d[0])));
}

// rows: 16 of numbers, then 16 of exponents.
MLXR_INLINE void mxfp4_mlx_pack_panel(uint8_t *dst, const uint8_t *const rows[32], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        mxfp4_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, 16);
            uint8_t numbers[32];
            for (int i = 0; i < 16; i++) numbers[2 * i] = native[i] & 15, numbers[2 * i + 1] = native[i] >> 4;
            ((uint8_t *)at.scales)[row] = *native_block(rows[16 + row], b, 1);
            pack_numbers(4, (uint8_t *)at.body, row, numbers);
        }
    }
}

MLXR_PANEL_FORMAT(mxfp4_mlx, .columns = 32, .step = 16 * MXFP4_BYTES, .bits = 4, .values = mxfp4_values)
