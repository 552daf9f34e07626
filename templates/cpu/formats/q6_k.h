// Q6_K: 256 columns: 16 times 16 numbers w of 6 bits with a signed scale, over an f16: d * (w - 32).
//
// Packed (pairs): 16 f16 | 16 x 16 scales | 8 x (4 vectors of two groups of the low 4 bits | two vectors of the upper
// two, for groups 0-3 and 4-7: the 2 bits from bit 2 (g % 4) of byte c are those of column 4 g + c).
enum { Q6_K_BYTES = 210, Q6_K_STEP = 256 + 128, Q6_K_BODY = 256 + 8 * Q6_K_STEP };

MLXR_INLINE void q6_k_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_pair(panel, blocks, b, Q6_K_BODY, at);
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v d = f16_load(at->scales + 2 * MLXR_LANES * p);
        for (int s = 0; s < 16; s++) {
            i32v scale = i32_load8((const int8_t *)at->body + 16 * s + MLXR_LANES * p);
            f32_store(at->d[s] + MLXR_LANES * p, d * f32_of_i32(scale));
        }
    }
}

MLXR_INLINE void q6_k_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    const uint8_t *quants = at->body + 256 + Q6_K_STEP * s;
    out->d[0] = f32_load(at->d[2 * s] + MLXR_LANES * part);
    out->d[1] = f32_load(at->d[2 * s + 1] + MLXR_LANES * part);
    unpack_nibbles(quants, part, out->w);
    MLXR_UNROLL for (int g = 0; g < 8; g++) {
        u32v upper = (u32v)i8_load(quants + 256 + 64 * (g / 4) + 4 * MLXR_LANES * part);
        int shift = 4 - 2 * (g & 3);
        out->w[g] |= (i8v)(shift >= 0 ? upper << (shift & 7) : upper >> (-shift & 7)) & 48;
    }
}

MLXR_INLINE void q6_k_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        open_pair(dst, blocks, b, Q6_K_BODY, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, Q6_K_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native + 208, 2);
            for (int s = 0; s < 16; s++) ((uint8_t *)at.body)[16 * s + row] = native[192 + s];
            for (int s = 0; s < 8; s++) {
                // In each half (4 times 32 columns) the first and third times 32 share 32 bytes for the low bits, the
                // second and fourth too, and all four 32 bytes for the upper ones.
                const uint8_t *low = native + 64 * (s / 4) + 32 * (s & 1), *upper = native + 128 + 32 * (s / 4);
                uint8_t *quants = (uint8_t *)at.body + 256 + Q6_K_STEP * s;
                uint32_t nibbles[8], uppers[2] = {0, 0};
                for (int g = 0; g < 8; g++) {
                    nibbles[g] = dword_at(low, g) >> 4 * (s >> 1 & 1) & 0x0f0f0f0f;
                    uppers[g / 4] |= (dword_at(upper, g) >> 2 * (s & 3) & 0x03030303) << 2 * (g & 3);
                }
                pack_nibbles(quants, row, nibbles);
                put_dword(quants + 256 + 4 * row, uppers[0]);
                put_dword(quants + 320 + 4 * row, uppers[1]);
            }
        }
    }
}
