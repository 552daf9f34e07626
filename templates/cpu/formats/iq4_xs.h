// IQ4_XS: 256 columns: 8 times 32 numbers of 4 bits that stand for those of IQ4_NL, with a 6-bit scale, over an f16:
// d * (scale - 32) * values[w].
//
// Packed: 16 f16 | 16 times 16 upper bits of scales (2 s: those of s) | 16 times 32 low bits (4 s) | 8 x 4 vectors of
// two groups; all but the order of rows is as in the native bytes.
// Needs: iq4_nl.h
enum { IQ4_XS_BYTES = 136, IQ4_XS_STEP = 256 };

MLXR_INLINE void iq4_xs_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    (void)blocks;
    const uint8_t *packed = panel + (size_t)b * 16 * IQ4_XS_BYTES;
    at->body = packed + 128;
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v d = f16_load(packed + 2 * MLXR_LANES * p);
        u32v upper = u32_load16(packed + 32 + 2 * MLXR_LANES * p);
        u32v lower = (u32v)i32_load(packed + 64 + 4 * MLXR_LANES * p);
        MLXR_UNROLL for (int s = 0; s < 8; s++) {
            u32v scale = (lower >> (4 * s) & 15) | (upper >> (2 * s) & 3) << 4;
            f32_store(at->d[s] + MLXR_LANES * p, d * f32_of_i32((i32v)scale - 32));
        }
    }
}

MLXR_INLINE void iq4_xs_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    out->d[0] = out->d[1] = f32_load(at->d[s] + MLXR_LANES * part);
    unpack_numbers(4, at->body + IQ4_XS_STEP * s, part, out->w);
}

MLXR_INLINE void iq4_xs_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++, dst += 16 * IQ4_XS_BYTES) {
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, IQ4_XS_BYTES);
            memcpy(dst + 2 * row, native, 2);
            memcpy(dst + 32 + 2 * row, native + 2, 2);
            memcpy(dst + 64 + 4 * row, native + 4, 4);
            for (int i = 0; i < 32; i++) put_dword(dst + 128 + 64 * i + 4 * row, dword_at(native + 8, i));
        }
    }
}

MLXR_PANEL_FORMAT(iq4_xs, .columns = 256, .step = 2 * IQ4_XS_BYTES, .bits = 4, .values = iq4_values)
