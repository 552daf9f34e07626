// Rows of f16 or bf16 weights times up to 64 inputs in matrix tiles, each weight read once.
//
// A tile of weights is 16 rows of 32 columns where they lie: the tile unit's first operand. The inputs are its second
// one, transposed once by each thread: [16 inputs' group][k / 2][16][2] bf16. The sums come out transposed too. Nothing
// is prefetched: the CPU's own prefetcher follows 16 rows, and further requests only fill its buffers (not measured
// alone).
#define MLXR_MOST_COLUMNS 64

#if defined(MLXR_AMX)
#define MLXR_TRANSPOSES 1

// m rows of bf16 as columns. Rows up to a multiple of 16 must be readable.
MLXR_OUTLINE void mlxr_columns(const uint8_t *rows, int K, int m, uint8_t *dst) {
    const size_t stride = mlxr_row_bytes(MLXR_ROWS_BF16, K);
    for (int first = 0; first < m; first += 16) {
        for (int k = 0; k < K; k += 32, dst += 1024) {
            __m512i v[16];
            MLXR_UNROLL for (int i = 0; i < 16; i++)
                v[i] = _mm512_loadu_si512(rows + (size_t)(first + i) * stride + 2 * k);
            transpose16(v);
            MLXR_UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + i * 64, v[i]);
        }
    }
}

// Adds tiles of weights times `groups` groups of columns to the sums, which stay in tiles 0 to 3 between calls. A
// tile's rows are `stride` bytes apart and a tile `tile_bytes` from the next; `step`: bytes from a group to the next.
#define MLXR_COLUMN(t)                                                     \
    if (groups > t) {                                                      \
        _tile_loadd(5, columns + t * step + (size_t)i * 1024, 64);         \
        _tile_dpbf16ps(t, 4, 5);                                           \
    }
MLXR_INLINE void columns_dot(int groups, int tiles, const uint8_t *w, size_t stride, size_t tile_bytes,
                             const uint8_t *columns, size_t step) {
    for (int i = 0; i < tiles; i++) {
        _tile_loadd(4, w + (size_t)i * tile_bytes, stride);
        MLXR_COLUMN(0)
        MLXR_COLUMN(1)
        MLXR_COLUMN(2)
        MLXR_COLUMN(3)
    }
}

MLXR_OUTLINE void mlxr_columns_dot(int groups, int tiles, const uint8_t *w, size_t stride, size_t tile_bytes,
                                   const uint8_t *columns, size_t step) {
    MLXR_FENCE();
    if (groups == 1) columns_dot(1, tiles, w, stride, tile_bytes, columns, step);
    if (groups == 2) columns_dot(2, tiles, w, stride, tile_bytes, columns, step);
    if (groups == 3) columns_dot(3, tiles, w, stride, tile_bytes, columns, step);
    if (groups == 4) columns_dot(4, tiles, w, stride, tile_bytes, columns, step);
    MLXR_FENCE();
}

MLXR_OUTLINE void mlxr_columns_begin(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// y[column][row of the panel] of the sums in the tiles.
MLXR_OUTLINE void mlxr_columns_end(int groups, float (*y)[16]) {
    float sums[4][16][16];
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    MLXR_FENCE();
    for (int g = 0; g < groups; g++) {
        __m512i v[16];
        MLXR_UNROLL for (int i = 0; i < 16; i++) v[i] = _mm512_loadu_si512(sums[g][i]);
        transpose16(v);
        MLXR_UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_si512(y[16 * g + i], v[i]);
    }
}

// As float_panel_dot, for m up to 64 inputs that mlxr_columns has transposed; y has room for a multiple of 16.
MLXR_INLINE void float_panel_columns(int format, const uint8_t *w, int K, int valid, const uint8_t *columns, int m,
                                     float (*y)[16]) {
    enum { TILES = 8 };
    const size_t row_bytes = (size_t)K * 2, step = mlxr_row_floats(K) * 32;
    const int groups = (m + 15) / 16;
    mlxr_columns_begin();
    if (format == MLXR_BF16 && K % 32 == 0 && valid == 16) {
        mlxr_columns_dot(groups, K / 32, w, row_bytes, 64, columns, step);
    } else {
        // Tiles of bf16 made of the rows, zeros for what is not there.
        for (int k0 = 0; k0 < K; k0 += 32 * TILES) {
            uint8_t tiles[TILES][16][64] __attribute__((aligned(64)));
            int n = 0;
            for (int k = k0; n < TILES && k < K; n++, k += 32)
                MLXR_UNROLL for (int i = 0; i < 16; i++)
                    _mm512_store_si512(tiles[n][i],
                                       i < valid ? float_pairs(format, w + i * row_bytes + 2 * (size_t)k, K - k)
                                                 : _mm512_setzero_si512());
            mlxr_columns_dot(groups, n, tiles[0][0], 64, 1024, columns + (size_t)k0 * 32, step);
        }
    }
    mlxr_columns_end(groups, y);
}
#else
#define MLXR_TRANSPOSES 0
MLXR_INLINE void mlxr_columns(const uint8_t *rows, int K, int m, uint8_t *dst) { (void)rows, (void)K, (void)m, (void)dst; }
#endif
