// The affine formats of MLX: `group` columns are so many numbers w of `bits` bits, a scale and a bias: d * w + m. Three
// planes: numbers (a stream of bits, least first, along each row), scales, biases.
//
// Packed: 16 scales | 16 biases | group / 32 x the numbers; those of 8 bits less 128, which makes them signed.
enum { AFFINE_f16, AFFINE_bf16, AFFINE_f32 };

MLXR_INLINE int affine_scale_bytes(int scale) { return scale == AFFINE_f32 ? 4 : 2; }

MLXR_INLINE f32v affine_scale(int scale, const uint8_t *p, int part) {
    p += affine_scale_bytes(scale) * MLXR_LANES * part;
    return scale == AFFINE_f32 ? f32_load((const float *)p) : scale == AFFINE_bf16 ? bf16_load(p) : f16_load(p);
}

MLXR_INLINE void affine_open(int bits, int group, int scale, const uint8_t *panel, int b, mlxr_block *at) {
    const int header = 32 * affine_scale_bytes(scale);
    at->scales = panel + (size_t)b * (header + 2 * bits * group);
    at->body = at->scales + header;
}

MLXR_INLINE void affine_read(int bits, int scale, const mlxr_block *at, int s, int part, mlxr_weights *out) {
    out->d[0] = out->d[1] = affine_scale(scale, at->scales, part);
    out->m[0] = out->m[1] = affine_scale(scale, at->scales + 16 * affine_scale_bytes(scale), part);
    unpack_numbers(bits, at->body + 64 * bits * s, part, out->w);
}

// rows: 16 of numbers, 16 of scales, 16 of biases.
MLXR_INLINE void affine_pack_panel(int bits, int group, int scale, uint8_t *dst, const uint8_t *const rows[48],
                                   int blocks) {
    const int scale_bytes = affine_scale_bytes(scale), block = bits * group / 8;
    for (int b = 0; b < blocks; b++, dst += 32 * scale_bytes + 16 * block) {
        for (int row = 0; row < 16; row++) {
            MLXR_UNROLL for (int i = 0; i < 2; i++) {
                const uint8_t *from = native_block(rows[16 + 16 * i + row], b, scale_bytes);
                memcpy(dst + (16 * i + row) * scale_bytes, from, (size_t)scale_bytes);
            }
            const uint8_t *native = native_block(rows[row], b, block);
            for (int s = 0; s < group / 32; s++) {
                uint8_t numbers[32];
                for (int i = 0; i < 4; i++, native += bits) {  // 8 numbers are `bits` bytes
                    uint64_t stream = 0;
                    memcpy(&stream, native, (size_t)bits);
                    for (int j = 0; j < 8; j++) {
                        numbers[8 * i + j] = (uint8_t)(stream >> bits * j & ((1u << bits) - 1)) ^ (bits == 8 ? 128 : 0);
                    }
                }
                pack_numbers(bits, dst + 32 * scale_bytes + 64 * bits * s, row, numbers);
            }
        }
    }
}

#define MLXR_AFFINE_FORMAT(name, bits_, group, scale)                                                                  \
    MLXR_INLINE void name##_open(const uint8_t *panel, int blocks, int b, mlxr_block *at) {                            \
        (void)blocks;                                                                                                  \
        affine_open(bits_, group, AFFINE_##scale, panel, b, at);                                                       \
    }                                                                                                                  \
    MLXR_INLINE void name##_read(const mlxr_block *at, int s, int part, mlxr_weights *out) {                           \
        affine_read(bits_, AFFINE_##scale, at, s, part, out);                                                          \
    }                                                                                                                  \
    MLXR_INLINE void name##_pack_panel(uint8_t *dst, const uint8_t *const rows[48], int blocks) {                      \
        affine_pack_panel(bits_, group, AFFINE_##scale, dst, rows, blocks);                                            \
    }                                                                                                                  \
    MLXR_PANEL_FORMAT(name, .columns = group, .bits = bits_, .bias = bits_ == 8 ? -128 : 0, .minima = 1,               \
                      .step = 64 * bits_ + (AFFINE_##scale == AFFINE_f32 ? 4096 : 2048) / group,                       \
                      .rounds = AFFINE_##scale == AFFINE_f32)
