// TQ2_0: 256 columns are 256 numbers w of 2 bits and an f16: d * w - d.
//
// Packed: 16 f16 | 8 x the numbers.
enum { TQ2_0_BYTES = 66, TQ2_0_STEP = 128 };

MLXR_INLINE void tq2_0_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    at->scales = panel + (size_t)b * 16 * TQ2_0_BYTES;
    at->body = at->scales + 32;
}

MLXR_INLINE void tq2_0_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    out->m[0] = out->m[1] = -out->d[0];
    unpack_numbers(2, at->body + TQ2_0_STEP * s, part, out->w);
}

// native: 64 bytes of numbers (each holds those of four times 32 columns), d.
MLXR_INLINE void tq2_0_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * TQ2_0_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, TQ2_0_BYTES);
            memcpy(dst + 2 * row, native + 64, 2);
            for (int s = 0; s < 8; s++) {
                uint32_t twos[8];
                for (int g = 0; g < 8; g++) twos[g] = dword_at(native + 32 * (s / 4), g) >> 2 * (s % 4) & 0x03030303;
                pack_twos(dst + 32 + TQ2_0_STEP * s, row, twos);
            }
        }
    }
}

MLXR_PANEL_FORMAT(tq2_0, .columns = 256, .step = 2 * TQ2_0_BYTES, .bits = 2, .minima = 1)
