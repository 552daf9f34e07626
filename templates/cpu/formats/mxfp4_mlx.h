// MLX's MXFP4: packed as MXFP4 is, from other native rows: exponents lie in a plane of their own, and byte i has columns
// 2 i and 2 i + 1.
// Needs: mxfp4.h
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
