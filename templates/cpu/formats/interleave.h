// What the packed formats share: 16 rows of a matrix, side by side.
//
// A panel is 16 rows. A group is 4 columns of a panel, a dword a row, so that a 512-bit vector holds it: lane = row. 32
// columns are 8 groups. 4-bit numbers lie two groups to a vector: group g (0..3) in the low halves of the bytes, group
// g + 4 in the high ones. Scales of 16 rows lie together. All the bytes are the native format's, and there are as many.

// 32 columns of one part of a panel, unpacked: d[c / 16] * (w - bias) - m for column c; the bias is the format's.
typedef struct {
    i8v w[8];  // per group
    f32v d[2], m;
} mlxr_weights;

// A native block of all 16 rows.
typedef struct {
    float d[16][16] __attribute__((aligned(64))), m[8][16];  // of formats with several scales a block
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

// 8 groups of bytes from 4 vectors of two 4-bit numbers.
MLXR_INLINE void unpack_nibbles(const uint8_t *quants, int part, i8v w[8]) {
    MLXR_UNROLL for (int g = 0; g < 4; g++) {
        i8v both = i8_load(quants + 64 * g + 4 * MLXR_LANES * part);
        w[g] = both & 15;
        w[g + 4] = (i8v)((u32v)both >> 4) & 15;
    }
}

// The other way, for one row: nibbles[g] has group g's 4 numbers in the low halves of its bytes.
MLXR_INLINE void pack_nibbles(uint8_t *quants, int row, const uint32_t nibbles[8]) {
    MLXR_UNROLL for (int g = 0; g < 4; g++) put_dword(quants + 64 * g + 4 * row, nibbles[g] | nibbles[g + 4] << 4);
}

// Formats with one f16 a row and block (`body` bytes of the rest) have those of two blocks in one cache line: scales,
// scales, body, body; the last of an odd number of blocks stands alone.
MLXR_INLINE void open_pair(const uint8_t *panel, int blocks, int b, int body, mlxr_block *at) {
    const uint8_t *base = panel + (size_t)(b / 2) * 2 * (32 + body);
    int both = (b | 1) < blocks, second = b & 1;
    at->scales = base + 32 * second;
    at->body = base + 32 + 32 * both + body * second;
}
