// SYM4: 32 columns are an f16 and 32 numbers w of 4 bits: d * (w - 8). Two planes: numbers (byte i has columns 2 i and
// 2 i + 1), scales.
//
// Packed (shared lines): 16 f16 | 4 vectors of two groups.
enum { SYM4_BYTES = 18, SYM4_BODY = 256 };

MLXR_INLINE void sym4_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, SYM4_BODY, at);
}

MLXR_INLINE void sym4_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    unpack_numbers(4, at->body, part, out->w);
}

// rows: 16 of numbers, then 16 of scales.
MLXR_INLINE void sym4_pack_panel(uint8_t *dst, const uint8_t *const rows[32], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        sym4_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, 16);
            uint8_t numbers[32];
            for (int i = 0; i < 16; i++) numbers[2 * i] = native[i] & 15, numbers[2 * i + 1] = native[i] >> 4;
            memcpy((uint8_t *)at.scales + 2 * row, native_block(rows[16 + row], b, 2), 2);
            pack_numbers(4, (uint8_t *)at.body, row, numbers);
        }
    }
}

MLXR_PANEL_FORMAT(sym4, .columns = 32, .step = 16 * SYM4_BYTES, .bits = 4, .bias = 8)
