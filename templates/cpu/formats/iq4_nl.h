// IQ4_NL: 32 columns are an f16 and 32 numbers of 4 bits that stand for others: d * values[w].
//
// Packed (shared lines): 16 f16 | 4 vectors of two groups, as the native bytes hold them.
enum { IQ4_NL_BYTES = 18, IQ4_NL_BODY = 256 };

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

MLXR_INLINE void iq4_nl_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {
    open_shared(panel, blocks, b, 2, IQ4_NL_BODY, at);
}

MLXR_INLINE void iq4_nl_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    (void)s;
    out->d[0] = out->d[1] = f16_load(at->scales + 2 * MLXR_LANES * part);
    unpack_numbers(4, at->body, part, out->w);
}

MLXR_INLINE void iq4_nl_pack_panel(uint8_t *dst, const uint8_t *const rows[16], int blocks) {
    for (int b = 0; b < blocks; b++) {
        mlxr_block at;
        iq4_nl_open(dst, blocks, b, &at);
        for (int row = 0; row < 16; row++) {
            const uint8_t *native = native_block(rows[row], b, IQ4_NL_BYTES);
            memcpy((uint8_t *)at.scales + 2 * row, native, 2);
            for (int g = 0; g < 4; g++) put_dword((uint8_t *)at.body + 64 * g + 4 * row, dword_at(native + 2, g));
        }
    }
}

MLXR_PANEL_FORMAT(iq4_nl, .columns = 32, .step = 16 * IQ4_NL_BYTES, .bits = 4, .values = iq4_values)
