// What the packed formats share: 16 rows of a matrix, side by side.
//
// A panel is 16 rows. A group is 4 columns of a panel, a dword a row, so that a 512-bit vector holds it: lane = row. 32
// columns are 8 groups. Scales of 16 rows lie together. All the bytes are the native format's, and there are as many.
//
// Numbers of 32 columns, by bits:
//   8  8 vectors, one of each group
//   4  4 vectors of two groups: group g (0..3) in the low halves of the bytes, group g + 4 in the high ones
//   2  2 vectors of four groups: number c of group g is 2 bits from bit 2 (g % 4) of byte c of vector g / 4
//   6  the low 4 bits, then the upper 2
//   3, 5  the low 2 or 4 bits, then a vector of the last: bit g of byte c is that of number c of group g

// 32 columns of one part of a panel, unpacked: d[c / 16] * (w - bias) + m[c / 16] for column c; the bias is the
// format's, which may have one d and no m or one.
typedef struct {
    i8v w[8];  // per group
    f32v d[2], m[2];
} mlxr_weights;

// A native block of all 16 rows.
typedef struct {
    float d[16][16] __attribute__((aligned(64))), m[16][16];  // of formats with several scales a block
    const uint8_t *scales, *body;
} mlxr_block;

MLXR_INLINE uint32_t dword_at(const uint8_t *p, int i) {
    uint32_t x;
    memcpy(&x, p + 4 * i, 4);
    return x;
}

MLXR_INLINE void put_dword(uint8_t *p, uint32_t x) { memcpy(p, &x, 4); }

// Native block b of a row; zeros for a row that is not there.
MLXR_INLINE const uint8_t *native_block(const uint8_t *row, int b, int bytes) {
    static const uint8_t zeros[256];
    return row ? row + (size_t)b * bytes : zeros;
}

MLXR_INLINE i8v shifted(u32v v, int left) { return (i8v)(left >= 0 ? v << (left & 31) : v >> (-left & 31)); }

// 8 groups of numbers of so many bits.
MLXR_INLINE void unpack_numbers(int bits, const uint8_t *quants, int part, i8v w[8]) {
    const uint8_t *at = quants + 4 * MLXR_LANES * part;
    const int low = bits == 6 || bits == 5 ? 4 : bits == 3 ? 2 : bits;
    MLXR_UNROLL for (int g = 0; g < 8; g++) {
        if (low == 8) w[g] = i8_load(at + 64 * g);
        if (low == 4) w[g] = shifted((u32v)i8_load(at + 64 * (g % 4)), -4 * (g / 4)) & 15;
        if (low == 2) w[g] = shifted((u32v)i8_load(at + 64 * (g / 4)), -2 * (g % 4)) & 3;
    }
    if (bits == low) return;
    MLXR_UNROLL for (int g = 0; g < 8; g++) {
        u32v upper = (u32v)i8_load(at + 64 * low + (bits == 6 ? 64 * (g / 4) : 0));
        if (bits == 6) w[g] |= shifted(upper, 4 - 2 * (g % 4)) & 48;
        if (bits != 6) w[g] |= shifted(upper, low - g) & (int8_t)(1 << low);
    }
}

// The other way, for one row. Each packs a dword of every group, with that many bits in each byte.
MLXR_INLINE void pack_ones(uint8_t *quants, int row, const uint32_t ones[8]) {
    uint32_t all = 0;
    MLXR_UNROLL for (int g = 0; g < 8; g++) all |= ones[g] << g;
    put_dword(quants + 4 * row, all);
}

MLXR_INLINE void pack_twos(uint8_t *quants, int row, const uint32_t twos[8]) {
    MLXR_UNROLL for (int g = 0; g < 8; g += 4) {
        put_dword(quants + 16 * g + 4 * row, twos[g] | twos[g + 1] << 2 | twos[g + 2] << 4 | twos[g + 3] << 6);
    }
}

MLXR_INLINE void pack_nibbles(uint8_t *quants, int row, const uint32_t nibbles[8]) {
    MLXR_UNROLL for (int g = 0; g < 4; g++) put_dword(quants + 64 * g + 4 * row, nibbles[g] | nibbles[g + 4] << 4);
}

// 32 numbers of so many bits (8: any bytes), a byte each.
MLXR_INLINE void pack_numbers(int bits, uint8_t *quants, int row, const uint8_t numbers[32]) {
    const int low = bits == 6 || bits == 5 ? 4 : bits == 3 ? 2 : bits;
    const uint32_t mask = 0x01010101u * ((1u << low) - 1);
    uint32_t lower[8], upper[8];
    MLXR_UNROLL for (int g = 0; g < 8; g++) {
        lower[g] = dword_at(numbers, g) & mask;
        upper[g] = (dword_at(numbers, g) & ~mask) >> (low & 7);
    }
    MLXR_UNROLL for (int g = 0; g < 8; g++) {
        if (low == 8) put_dword(quants + 64 * g + 4 * row, lower[g]);
    }
    if (low == 4) pack_nibbles(quants, row, lower);
    if (low == 2) pack_twos(quants, row, lower);
    if (bits == 6) pack_twos(quants + 256, row, upper);
    if (bits == 5 || bits == 3) pack_ones(quants + 64 * low, row, upper);
}

// Scales of a few bytes a row and block: those of as many blocks as fill a cache line lie together, before the `body`
// bytes of each; the last blocks, fewer, likewise.
MLXR_INLINE void open_shared(const uint8_t *panel, int blocks, int b, int scale_bytes, int body, mlxr_block *at) {
    const int together = 4 / scale_bytes, first = b / together * together;
    const uint8_t *base = panel + (size_t)first * (16 * scale_bytes + body);
    const int count = blocks - first < together ? blocks - first : together;
    at->scales = base + 16 * scale_bytes * (b - first);
    at->body = base + 16 * scale_bytes * count + body * (b - first);
}
