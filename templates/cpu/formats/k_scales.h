// 6-bit scales of blocks of 256 columns.
//
// Packed: 3 vectors of a dword a row. Field f of 16 is 6 bits from bit 6 * (f % 5) of vector f / 5; field 15 is the top
// two bits of all three.
MLXR_INLINE i32v k_field(const i32v v[3], int f) {
    if (f < 15) return (i32v)((u32v)v[f / 5] >> (6 * (f % 5))) & 63;
    return (i32v)((u32v)v[0] >> 30 | ((u32v)v[1] >> 28 & 12) | ((u32v)v[2] >> 26 & 48));
}

MLXR_INLINE void read_k_fields(const uint8_t *packed, int part, i32v v[3]) {
    MLXR_UNROLL for (int i = 0; i < 3; i++) v[i] = i32_load(packed + 64 * i + 4 * MLXR_LANES * part);
}

MLXR_INLINE void pack_k_fields(uint8_t *packed, int row, const uint32_t fields[16]) {
    uint32_t v[3] = {0, 0, 0};
    for (int f = 0; f < 15; f++) v[f / 5] |= fields[f] << 6 * (f % 5);
    for (int i = 0; i < 3; i++) put_dword(packed + 64 * i + 4 * row, v[i] | (fields[15] >> 2 * i & 3) << 30);
}

// Q4_K and Q5_K: 8 scales (fields 0..7) and minima (8..15) a block, over two f16: 16 f16 d | 16 f16 dmin | the fields.
enum { K_SCALES_BYTES = 64 + 3 * 64 };

// Fills at->d and at->m.
MLXR_INLINE void open_k_scales(const uint8_t *packed, mlxr_block *at) {
    MLXR_UNROLL for (int p = 0; p < MLXR_PARTS; p++) {
        f32v d = f16_load(packed + 2 * MLXR_LANES * p), dmin = -f16_load(packed + 32 + 2 * MLXR_LANES * p);
        i32v v[3];
        read_k_fields(packed + 64, p, v);
        MLXR_UNROLL for (int s = 0; s < 8; s++) {
            f32_store(at->d[s] + MLXR_LANES * p, d * f32_of_i32(k_field(v, s)));
            f32_store(at->m[s] + MLXR_LANES * p, dmin * f32_of_i32(k_field(v, 8 + s)));
        }
    }
}

MLXR_INLINE void read_k_scales(const mlxr_block *at, int s, int part, mlxr_weights *out) {
    out->d[0] = out->d[1] = f32_load(at->d[s] + MLXR_LANES * part);
    out->m[0] = out->m[1] = f32_load(at->m[s] + MLXR_LANES * part);
}

// native: d, dmin, then 12 bytes. The low 6 bits of bytes 0-3 are scales 0-3, of bytes 4-7 minima 0-3; bytes 8-11 are
// the low 4 bits of scales and minima 4-7, whose upper two bits top bytes 0-7.
MLXR_INLINE void pack_k_scales(uint8_t *packed, int row, const uint8_t *native) {
    const uint8_t *q = native + 4;
    uint32_t fields[16];
    for (int s = 0; s < 4; s++) {
        fields[s] = q[s] & 63;
        fields[8 + s] = q[4 + s] & 63;
        fields[4 + s] = (q[8 + s] & 15) | (q[s] >> 6) << 4;
        fields[12 + s] = q[8 + s] >> 4 | (q[4 + s] >> 6) << 4;
    }
    pack_k_fields(packed + 64, row, fields);
    memcpy(packed + 2 * row, native, 2);
    memcpy(packed + 32 + 2 * row, native + 2, 2);
}

// Their low 4 bits: the low (s even) or high halves of 32 native bytes, which two times 32 columns share.
MLXR_INLINE void k_nibbles(const uint8_t *native, int s, uint32_t nibbles[8]) {
    for (int g = 0; g < 8; g++) nibbles[g] = dword_at(native + 32 * (s / 2), g) >> 4 * (s & 1) & 0x0f0f0f0f;
}
