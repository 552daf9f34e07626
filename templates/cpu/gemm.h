// Matmul of a tile: rows of inputs times two panels of 16 rows of weights, unpacked.
//
//   inputs   rows of f32 or bf16, `stride` bytes from one to the next; rows up to a whole tile must be readable
//   panels   f32: [k][16]; bf16: [k / 2][16][2], k a multiple of 32; the second one `panel_bytes` after the first
//   sums     [2][MLXR_MOST_TILE_ROWS][16] f32: from zero, or added to what is there (a later block of columns)
//
// These functions are not inlined: they are the same for every matrix, and their loops are long.
#define MLXR_F32_TILE_ROWS 24
#if defined(MLXR_AMX)
#define MLXR_BF16_MATMUL 1
#define MLXR_BF16_TILE_ROWS 32
#elif defined(MLXR_AVX512) && defined(__AVX512BF16__)
#define MLXR_BF16_MATMUL 1
#define MLXR_BF16_TILE_ROWS 24
#endif
#define MLXR_MOST_TILE_ROWS 32

// Rows and vectors whose sums stay in registers.
#if defined(MLXR_AVX512)
#define MLXR_BLOCK_ROWS 12
#define MLXR_BLOCK_VECTORS 2
#elif defined(MLXR_NEON)
#define MLXR_BLOCK_ROWS 6
#define MLXR_BLOCK_VECTORS 4
#else
#define MLXR_BLOCK_ROWS 6
#define MLXR_BLOCK_VECTORS 2
#endif

// The literal smallest block that holds what is left of `rows`.
#define MLXR_BY_BLOCKS(rows, call)                                                                \
    for (int row = 0; row < (rows); row += MLXR_BLOCK_ROWS) {                                     \
        const int left = (rows)-row;                                                              \
        if (left > MLXR_BLOCK_ROWS / 3 * 2) call(MLXR_BLOCK_ROWS);                                \
        if (left > MLXR_BLOCK_ROWS / 3 && left <= MLXR_BLOCK_ROWS / 3 * 2) call(MLXR_BLOCK_ROWS / 3 * 2); \
        if (left <= MLXR_BLOCK_ROWS / 3) call(MLXR_BLOCK_ROWS / 3);                               \
    }

// Column k of R rows times the vectors of that k. Rows are found from every third one: addresses with a factor of 1 or 2
// take no instruction of their own, and so few pointers stay in registers. x[j]: of row 3 j.
MLXR_INLINE void block_f32_column(const uint8_t *const *x, size_t stride, const float *const *w, int k, int R,
                                  f32v (*acc)[MLXR_BLOCK_VECTORS]) {
    f32v u[MLXR_BLOCK_VECTORS];
    MLXR_UNROLL for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) u[v] = f32_load(w[v] + (size_t)k * 16);
    MLXR_UNROLL for (int i = 0; i < R; i++) {
        f32v one = f32_set1(((const float *)(x[i / 3] + (size_t)(i % 3) * stride))[k]);
        MLXR_UNROLL for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) acc[i][v] = f32_fma(one, u[v], acc[i][v]);
    }
}

// R rows of f32 times MLXR_BLOCK_VECTORS vectors of each k: w[v] is that vector at k = 0, sums[v] where its sums go.
MLXR_INLINE void block_f32(const uint8_t *x, size_t stride, const float *const *w, int K, int R, float *const *sums,
                           int add) {
    f32v acc[MLXR_BLOCK_ROWS][MLXR_BLOCK_VECTORS];
    const uint8_t *rows[(MLXR_BLOCK_ROWS + 2) / 3];
    const float *vectors[MLXR_BLOCK_VECTORS];
    MLXR_UNROLL for (int i = 0; i < R; i += 3) rows[i / 3] = x + (size_t)i * stride;
    MLXR_UNROLL for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) vectors[v] = w[v];
    MLXR_UNROLL for (int i = 0; i < R; i++)
        MLXR_UNROLL for (int v = 0; v < MLXR_BLOCK_VECTORS; v++)
            acc[i][v] = add ? f32_load(sums[v] + i * 16) : f32_zero();
    int k = 0;
    for (; k + 4 <= K; k += 4) {
        MLXR_UNROLL for (int j = 0; j < 4; j++) block_f32_column(rows, stride, vectors, j, R, acc);
        MLXR_UNROLL for (int i = 0; i < R; i += 3) rows[i / 3] += 16;
        MLXR_UNROLL for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) vectors[v] += 64;
    }
    for (int j = 0; k + j < K; j++) block_f32_column(rows, stride, vectors, j, R, acc);
    MLXR_UNROLL for (int i = 0; i < R; i++)
        MLXR_UNROLL for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) f32_store(sums[v] + i * 16, acc[i][v]);
}

MLXR_OUTLINE void mlxr_tile_f32(const uint8_t *x, size_t stride, int rows, const uint8_t *panels, size_t panel_bytes,
                                int K, float *sums, int add) {
    for (int first = 0; first < 2 * MLXR_PARTS; first += MLXR_BLOCK_VECTORS) {
        const float *w[MLXR_BLOCK_VECTORS];
        float *to[MLXR_BLOCK_VECTORS];
        for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) {
            int panel = (first + v) / MLXR_PARTS, lane = (first + v) % MLXR_PARTS * MLXR_LANES;
            w[v] = (const float *)(panels + (size_t)panel * panel_bytes) + lane;
            to[v] = sums + panel * MLXR_MOST_TILE_ROWS * 16 + lane;
        }
#define MLXR_BLOCK(R)                                                                               \
    {                                                                                               \
        float *block[MLXR_BLOCK_VECTORS];                                                           \
        for (int v = 0; v < MLXR_BLOCK_VECTORS; v++) block[v] = to[v] + row * 16;                   \
        if (add) block_f32(x + (size_t)row * stride, stride, w, K, R, block, 1);                    \
        else block_f32(x + (size_t)row * stride, stride, w, K, R, block, 0);                        \
    }
        MLXR_BY_BLOCKS(rows, MLXR_BLOCK)
#undef MLXR_BLOCK
    }
}

#if defined(MLXR_AMX)
// Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights; all of 16 rows of 64 bytes. A thread turns them on before its
// first tile and off after its last. The compilers' intrinsics say nothing of the memory that they read: the empty asm
// does.
#define MLXR_FENCE() __asm__ volatile("" ::: "memory")

MLXR_OUTLINE void mlxr_tiles_on(void) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = 64;
        shape.rows[i] = 16;
    }
    MLXR_FENCE();
    _tile_loadconfig(&shape);
}

MLXR_INLINE void mlxr_tiles_off(void) { _tile_release(); }

MLXR_OUTLINE void mlxr_tile_bf16(const uint8_t *x, size_t stride, int rows, const uint8_t *panels, size_t panel_bytes,
                                 int K, float *sums, int add, const uint8_t *next, int next_rows) {
    float *second = sums + MLXR_MOST_TILE_ROWS * 16;
    const uint8_t *w0 = panels, *w1 = panels + panel_bytes, *x1 = x + 16 * stride;
    const int tall = rows > 16;
    MLXR_FENCE();
    if (add) {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, second, 64);
        if (tall) {
            _tile_loadd(2, sums + 256, 64);
            _tile_loadd(3, second + 256, 64);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    if (tall) {
        for (int k = 0; k < K; k += 32) {
            for (int i = 0; i < next_rows; i++) __builtin_prefetch(next + (size_t)i * stride + 2 * k, 0, 2);
            _tile_loadd(4, x + 2 * k, stride);
            _tile_loadd(6, w0 + 32 * k, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w1 + 32 * k, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, x1 + 2 * k, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, sums + 256, 64);
        _tile_stored(3, second + 256, 64);
    } else {
        for (int k = 0; k < K; k += 32) {
            _tile_loadd(4, x + 2 * k, stride);
            _tile_loadd(6, w0 + 32 * k, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w1 + 32 * k, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, second, 64);
    MLXR_FENCE();
}
#else
MLXR_INLINE void mlxr_tiles_on(void) {}
MLXR_INLINE void mlxr_tiles_off(void) {}
#if defined(MLXR_BF16_MATMUL)
// R rows of bf16 times two panels, a pair of columns at a time.
MLXR_INLINE void block_bf16(const uint8_t *x, size_t stride, const uint8_t *w0, const uint8_t *w1, int K, int R,
                            float *sums, int add) {
    __m512 acc[MLXR_BLOCK_ROWS][2];
    float *second = sums + MLXR_MOST_TILE_ROWS * 16;
    MLXR_UNROLL for (int i = 0; i < R; i++) {
        acc[i][0] = add ? _mm512_loadu_ps(sums + i * 16) : _mm512_setzero_ps();
        acc[i][1] = add ? _mm512_loadu_ps(second + i * 16) : _mm512_setzero_ps();
    }
    for (int k = 0; k < K; k += 2) {
        __m512i u0 = _mm512_loadu_si512(w0 + 32 * k), u1 = _mm512_loadu_si512(w1 + 32 * k);
        MLXR_UNROLL for (int i = 0; i < R; i++) {
            __m512i pair = _mm512_set1_epi32(*(const i32_any *)(x + (size_t)i * stride + 2 * k));
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], (__m512bh)pair, (__m512bh)u0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], (__m512bh)pair, (__m512bh)u1);
        }
    }
    MLXR_UNROLL for (int i = 0; i < R; i++) {
        _mm512_storeu_ps(sums + i * 16, acc[i][0]);
        _mm512_storeu_ps(second + i * 16, acc[i][1]);
    }
}

MLXR_OUTLINE void mlxr_tile_bf16(const uint8_t *x, size_t stride, int rows, const uint8_t *panels, size_t panel_bytes,
                                 int K, float *sums, int add, const uint8_t *next, int next_rows) {
    (void)next, (void)next_rows;
#define MLXR_BLOCK(R) block_bf16(x + (size_t)row * stride, stride, panels, panels + panel_bytes, K, R, sums + row * 16, add)
    MLXR_BY_BLOCKS(rows, MLXR_BLOCK)
#undef MLXR_BLOCK
}
#endif
#endif

#if defined(MLXR_BF16_MATMUL)
#define MLXR_ROWS_FAST MLXR_ROWS_BF16
#else
#define MLXR_ROWS_FAST MLXR_ROWS_F32
#define MLXR_BF16_TILE_ROWS MLXR_F32_TILE_ROWS
#endif

// Units of two panels that are unpacked together, and the columns of a block of them: 1 MB of bf16, which fits the
// caches of CPUs with matrix tiles, and half of that in f32. Up to MLXR_NEAR_ROWS rows one unit of few columns is
// better. (No figures are recorded.)
#define MLXR_UNITS 8
#define MLXR_NEAR_ROWS 48
#define MLXR_NEAR_COLUMNS 256
#define MLXR_TILE_FLOATS (2 * MLXR_MOST_TILE_ROWS * 16)

MLXR_INLINE int mlxr_block_columns(int K, int bytes) {
    const int most = bytes == 2 ? 2048 : 512, blocks = (K + most - 1) / most;
    return ((K + blocks - 1) / blocks + 31) / 32 * 32;
}

MLXR_INLINE void mlxr_tile(int form, const uint8_t *x, size_t stride, int rows, const uint8_t *panels, size_t panel_bytes,
                           int K, float *sums, int add, const uint8_t *next, int next_rows) {
#if defined(MLXR_BF16_MATMUL)
    if (form == MLXR_ROWS_BF16) {
        mlxr_tile_bf16(x, stride, rows, panels, panel_bytes, K, sums, add, next, next_rows);
        return;
    }
#endif
    mlxr_tile_f32(x, stride, rows, panels, panel_bytes, K, sums, add);
}

// The most rows for which reading weights as they lie beats unpacking them. A step of a model of 100M, in q8_0, took 16 ms
// of one core in place of 17.5 with 16 rows, 17.9 in place of 19.7 with 20, as much with 24; in q4_k_m, as much with 16.
// In bf16, where vectors alone multiply it, a model of 17M took 0.6 ms of two cores in place of 0.9 with 8 rows, 1.1 in
// place of 1.3 with 16, 1.5 in place of 1.7 with 24, as much with 32. (No figures are recorded for the others.)
// MLXR_BF16_FROM: the fewest rows of inputs that become bf16 for 16-bit weights.
#if defined(MLXR_AMX)
#define MLXR_FEW_INTEGER 14
#define MLXR_FEW_Q8_0 20
#define MLXR_FEW_HALF 64
#define MLXR_BF16_FROM 5
#elif defined(MLXR_BF16_MATMUL)
#define MLXR_FEW_INTEGER INT32_MAX
#define MLXR_FEW_Q8_0 INT32_MAX
#define MLXR_FEW_HALF 24
#define MLXR_BF16_FROM 5
#else
#define MLXR_FEW_INTEGER INT32_MAX
#define MLXR_FEW_Q8_0 INT32_MAX
#define MLXR_FEW_HALF 8
#define MLXR_BF16_FROM INT32_MAX
#endif
#define MLXR_FEW_F32 8

// The form and the most rows if all ways are to give the same bits: bf16 in matrix tiles, as they lie or unpacked, or f32.
#if defined(MLXR_AMX)
#define MLXR_ROWS_STEADY MLXR_ROWS_BF16
#define MLXR_FEW_STEADY MLXR_FEW_HALF
#else
#define MLXR_ROWS_STEADY MLXR_ROWS_F32
#define MLXR_FEW_STEADY INT32_MAX
#endif
