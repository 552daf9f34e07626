// Projections: rows of inputs times matrices of weights, through an epilogue.
//
// A matrix is cut into panels of 16 rows, which the threads share by the bytes to read. Few inputs are multiplied with a
// panel as it lies in memory, read once. For many the panels are unpacked, some at a time into this thread's cache, and
// multiplied tile by tile.

// Calls with a literal number of rows, the least of 1, 2, 4, 8 (and 12) that holds what is left, as MLXR_M.
#define MLXR_IF_ROWS(rows, n, call)  \
    if ((rows) <= n) {               \
        enum { MLXR_M = n };         \
        call;                        \
    } else
#define MLXR_IF_UP_TO_4(rows, call) \
    MLXR_IF_ROWS(rows, 1, call) MLXR_IF_ROWS(rows, 2, call) MLXR_IF_ROWS(rows, 4, call)
#define MLXR_BY_8_ROWS(rows, call) MLXR_IF_UP_TO_4(rows, call) { enum { MLXR_M = 8 }; call; }
#define MLXR_BY_12_ROWS(rows, call) \
    MLXR_IF_UP_TO_4(rows, call) MLXR_IF_ROWS(rows, 8, call) { enum { MLXR_M = 12 }; call; }

// How a panel of a format with a number of columns is read. `valid`: rows of it that are there.
typedef struct {
    // y[i][lane] for m inputs in `form`, at most MLXR_CHUNK. Of x and y there are rows up to a multiple of 16.
    void (*dot)(const uint8_t *panel, int valid, const uint8_t *x, int m, float (*y)[16]);
    // Columns [k0, k1) as a tile wants them: f32, or bf16 for a fast matmul that has it.
    void (*unpack)(const uint8_t *panel, int valid, int k0, int k1, uint8_t *dst);
    size_t panel_bytes;
    int form;  // of its inputs, when they are few
} mlxr_matrix;

// Adjacent outputs, the product with one tensor; `up` too if the output is activation(gate) * up.
typedef struct {
    const mlxr_matrix *matrix, *up_matrix;
    const uint8_t *w, *up;
    int rows;
} mlxr_segment;

struct mlxr_output;
// Rows [row, row + count) of `valid` outputs from `column` on, from sums y and, of `up`, u.
typedef void (*mlxr_finish)(const struct mlxr_output *out, int row, int count, int column, int valid, const float (*y)[16],
                            const float (*u)[16]);
typedef int (*mlxr_before)(mlxr_worker *w, const mlxr_input *in, const struct mlxr_output *out, const uint8_t *x,
                          size_t x_bytes);
// Where outputs go, and what an epilogue reads.
typedef struct mlxr_output {
    float *out;
    const float *bias, *up_bias, *residual;
    const float *gate;      // [rows]: a row's outputs are multiplied by its sigmoid
    const int32_t *places;  // [rows]: the rows of `out`, `residual` and `gate` that they are, if not their own
    const float *factors;   // [rows]: what a row's outputs are multiplied by
    const float *times;     // [rows], each `times_width` from the next: what each output is multiplied by
    float alpha_p, alpha_n;  // of xielu
    int width, times_width;
    mlxr_finish finish;
    mlxr_before lower;  // what all threads do when few rows are 8-bit integers, and whether others read it; NULL: nothing
} mlxr_output;

// 16-bit floats: some inputs are f32, more of them bf16, which matrix tiles take as columns.
enum { MLXR_ROWS_HALF = MLXR_FORMS };

MLXR_INLINE int mlxr_form(const mlxr_matrix *a, int m) {
    if (a->form != MLXR_ROWS_HALF) return a->form;
    return m >= MLXR_BF16_FROM ? MLXR_ROWS_BF16 : MLXR_ROWS_F32;
}

enum { MLXR_NO_ACTIVATION, MLXR_SILU, MLXR_GELU, MLXR_GELU_TANH, MLXR_RELU, MLXR_RELU2, MLXR_XIELU, MLXR_SWIGLU_OAI };
#define MLXR_CHUNK 64

// An epilogue's steps, as literals; a number that is 0 is a step left out.
typedef struct {
    int activation, gated, bias, residual, gate, times, places, factors, input_factors;
    float limit, out_scale, out_cap, out_limit, residual_scale;
} mlxr_epilogue;

MLXR_INLINE f32v mlxr_activate(int kind, f32v v) {
    switch (kind) {
        case MLXR_SILU: return f32_silu(v);
        case MLXR_GELU: return f32_gelu(v);
        case MLXR_GELU_TANH: return f32_gelu_tanh(v);
        case MLXR_RELU: return f32_relu(v);
        case MLXR_RELU2: return f32_relu2(v);
        default: return v;
    }
}

// Its two numbers are those of the layer, through softplus: see mlxr_softplus.
MLXR_INLINE f32v mlxr_xielu(f32v x, float p, float n) {
    const f32v below = (f32_exp(f32_min(f32_set1(-1e-6f), x)) - 1.0f - x) * n;
    return f32_select(x > 0.0f, x * x * p, below) + x * 0.5f;
}

MLXR_INLINE float mlxr_softplus(float x) { return __builtin_log1pf(__builtin_expf(x)); }

// activation(gate) * up, both bounded by `limit`, or swiglu_oai, which bounds the gate first: gate * sigmoid(1.702 *
// gate) * (up + 1).
MLXR_INLINE f32v mlxr_gated(int kind, float limit, f32v gate, f32v up) {
    if (kind != MLXR_SWIGLU_OAI) gate = mlxr_activate(kind, gate);
    if (limit) {
        gate = f32_min(f32_set1(limit), gate);
        up = f32_min(f32_set1(limit), f32_max(f32_set1(-limit), up));
    }
    if (kind != MLXR_SWIGLU_OAI) return gate * up;
    return gate / (f32_exp(gate * -1.702f) + 1.0f) * (up + 1.0f);
}

MLXR_INLINE void mlxr_finish_rows(mlxr_epilogue e, const mlxr_output *out, int row, int count, int column, int valid,
                                  const float (*y)[16], const float (*u)[16]) {
    for (int lane = 0; lane < valid; lane += MLXR_LANES) {
        const int n = valid - lane, whole = n >= MLXR_LANES, c = column + lane;
        f32v b = f32_zero(), up_b = f32_zero();
        if (e.bias) b = whole ? f32_load(out->bias + c) : f32_load_part(out->bias + c, n);
        if (e.bias && e.gated) up_b = whole ? f32_load(out->up_bias + c) : f32_load_part(out->up_bias + c, n);
        for (int i = 0; i < count; i++) {
            const size_t to = (size_t)(e.places ? out->places[row + i] : row + i);
            const size_t place = to * (size_t)out->width + (size_t)c;
            f32v v = f32_load(y[i] + lane);
            if (e.input_factors) v *= f32_set1(out->factors[row + i]);
            if (e.bias) v += b;
            if (e.gated) {
                f32v up = f32_load(u[i] + lane);
                if (e.input_factors) up *= f32_set1(out->factors[row + i]);
                if (e.bias) up += up_b;
                v = mlxr_gated(e.activation, e.limit, v, up);
            } else if (e.activation == MLXR_XIELU) {
                v = mlxr_xielu(v, out->alpha_p, out->alpha_n);
            } else {
                v = mlxr_activate(e.activation, v);
            }
            if (e.out_scale) v *= e.out_scale;
            if (e.out_cap) v = f32_tanh(v * (1.0f / e.out_cap)) * e.out_cap;
            if (e.out_limit) v = f32_min(f32_set1(e.out_limit), f32_max(f32_set1(-e.out_limit), v));
            if (e.times) {
                const float *by = out->times + to * (size_t)out->times_width + (size_t)c;
                v *= whole ? f32_load(by) : f32_load_part(by, n);
            }
            if (e.gate) v *= f32_sigmoid(f32_set1(out->gate[to]));
            if (e.factors) v *= f32_set1(out->factors[row + i]);
            if (e.residual_scale) v *= e.residual_scale;
            if (e.residual) v += whole ? f32_load(out->residual + place) : f32_load_part(out->residual + place, n);
            if (whole) f32_store(out->out + place, v);
            else f32_store_part(out->out + place, v, n);
        }
    }
}

// This thread's part of the units of several segments in a row, by cost.
typedef struct {
    int64_t passed, begin, end;
} mlxr_split;

MLXR_INLINE mlxr_split mlxr_split_start(const mlxr_worker *w, int64_t cost) {
    return (mlxr_split){0, cost * w->tid / w->threads, cost * (w->tid + 1) / w->threads};
}

MLXR_INLINE int mlxr_split_unit(int64_t cost, int64_t unit, int units) {
    return cost <= 0 ? 0 : cost / unit >= units ? units : (int)(cost / unit);
}

// Units [*first, *last) of the next segment.
MLXR_INLINE void mlxr_split_next(mlxr_split *s, int64_t unit, int units, int *first, int *last) {
    *first = mlxr_split_unit(s->begin - s->passed, unit, units);
    *last = mlxr_split_unit(s->end - s->passed, unit, units);
    s->passed += unit * units;
}

MLXR_INLINE int mlxr_panels(const mlxr_segment *s) { return (s->rows + 15) / 16; }

// Bytes of an output's panel and of what it is multiplied with.
MLXR_INLINE int64_t mlxr_panel_cost(const mlxr_segment *s) {
    return (int64_t)(s->matrix->panel_bytes + (s->up ? s->up_matrix->panel_bytes : 0));
}

MLXR_INLINE int mlxr_valid(const mlxr_segment *s, int panel) {
    return s->rows - 16 * panel < 16 ? s->rows - 16 * panel : 16;
}

// Panels [first, last) of a segment whose outputs start at `column`, for few inputs: m rows, `x` in the form of each
// matrix, `x_bytes` from one row to the next.
MLXR_INLINE void mlxr_few_panels(int m, const mlxr_segment *s, int first, int last, int column, const uint8_t *const *x,
                                 const size_t *x_bytes, const mlxr_output *out) {
    enum { GROUP = 4 };  // panels that stay in the cache for the next chunk of inputs
    float y[MLXR_CHUNK][16], u[MLXR_CHUNK][16];
    const mlxr_matrix *a = s->matrix, *b = s->up_matrix;
    for (int group = first; group < last; group += GROUP) {
        const int end = group + GROUP < last ? group + GROUP : last;
        for (int row = 0; row < m; row += MLXR_CHUNK) {
            const int count = m - row < MLXR_CHUNK ? m - row : MLXR_CHUNK;
            for (int p = group; p < end; p++) {
                const int valid = mlxr_valid(s, p);
                const int fa = mlxr_form(a, m), fb = b ? mlxr_form(b, m) : 0;
                a->dot(s->w + (size_t)p * a->panel_bytes, valid, x[fa] + (size_t)row * x_bytes[fa], count, y);
                if (b) b->dot(s->up + (size_t)p * b->panel_bytes, valid, x[fb] + (size_t)row * x_bytes[fb], count, u);
                out->finish(out, row, count, column + 16 * p, valid, (const float(*)[16])y, (const float(*)[16])u);
            }
        }
    }
}

MLXR_INLINE void mlxr_few(const mlxr_worker *w, int m, const mlxr_segment *segments, int n, const uint8_t *const *x,
                          const size_t *x_bytes, const mlxr_output *out) {
    int64_t cost = 0;
    for (int i = 0; i < n; i++) cost += mlxr_panel_cost(&segments[i]) * mlxr_panels(&segments[i]);
    mlxr_split split = mlxr_split_start(w, cost);
    for (int i = 0, column = 0; i < n; column += segments[i++].rows) {
        const mlxr_segment *s = &segments[i];
        int first, last;
        mlxr_split_next(&split, mlxr_panel_cost(s), mlxr_panels(s), &first, &last);
        mlxr_few_panels(m, s, first, last, column, x, x_bytes, out);
    }
}

// Two panels make a unit: adjacent ones, or the same one of w and up.
MLXR_INLINE int mlxr_units(const mlxr_segment *s) { return s->up ? mlxr_panels(s) : (mlxr_panels(s) + 1) / 2; }

// Columns [k0, k1) of a unit, its second panel `panel_bytes` after its first; an odd panel has none.
MLXR_INLINE void mlxr_unpack_unit(const mlxr_segment *s, int unit, int k0, int k1, uint8_t *to, size_t panel_bytes) {
    const mlxr_matrix *a = s->matrix, *b = s->up ? s->up_matrix : a;
    const int p = s->up ? unit : 2 * unit, q = s->up ? unit : p + 1;
    a->unpack(s->w + (size_t)p * a->panel_bytes, mlxr_valid(s, p), k0, k1, to);
    if (q < mlxr_panels(s))
        b->unpack((s->up ? s->up : s->w) + (size_t)q * b->panel_bytes, mlxr_valid(s, q), k0, k1, to + panel_bytes);
}

// Rows [row, row + count) of a unit's outputs from its sums. `column`: the segment's first output.
MLXR_INLINE void mlxr_finish_unit(const mlxr_output *out, const mlxr_segment *s, int unit, int row, int count, int column,
                                  const float *sums) {
    const float(*y)[16] = (const float(*)[16])sums, (*u)[16] = y + MLXR_MOST_TILE_ROWS;
    if (s->up) {
        out->finish(out, row, count, column + 16 * unit, mlxr_valid(s, unit), y, u);
        return;
    }
    out->finish(out, row, count, column + 32 * unit, mlxr_valid(s, 2 * unit), y, NULL);
    if (2 * unit + 1 < mlxr_panels(s))
        out->finish(out, row, count, column + 32 * unit + 16, mlxr_valid(s, 2 * unit + 1), u, NULL);
}

// Brings closer what `finish` reads and writes for rows [row, row + count) of a unit.
MLXR_INLINE void mlxr_near_outputs(const mlxr_output *out, const mlxr_segment *s, int unit, int row, int count, int column) {
    if (out->places) return;
    const size_t first = (size_t)(column + (s->up ? 16 : 32) * unit);
    for (int i = 0; i < count; i++) {
        const size_t at = (size_t)(row + i) * (size_t)out->width + first;
        __builtin_prefetch(out->out + at, 1, 2);
        if (out->residual && out->residual != out->out) __builtin_prefetch(out->residual + at, 0, 2);
        if (!s->up) {
            __builtin_prefetch(out->out + at + 16, 1, 2);
            if (out->residual && out->residual != out->out) __builtin_prefetch(out->residual + at + 16, 0, 2);
        }
    }
}

// Units [first, last) of a segment for many inputs: m rows in f32 or bf16. Some units are unpacked at a time, over so
// many columns that they fit the second level cache, or the first level one if the rows are not that many; while there
// are more columns the sums wait.
MLXR_INLINE void mlxr_many_units(int m, int K, int form, const mlxr_segment *s, int first, int last, int column,
                                 const uint8_t *x, uint8_t *scratch, const mlxr_output *out) {
    const int bytes = form == MLXR_ROWS_BF16 ? 2 : 4;
    const int rows = form == MLXR_ROWS_BF16 ? MLXR_BF16_TILE_ROWS : MLXR_F32_TILE_ROWS;
    const int block = m > MLXR_NEAR_ROWS ? mlxr_block_columns(K, bytes) : MLXR_NEAR_COLUMNS;
    const int most = m > MLXR_NEAR_ROWS ? MLXR_UNITS : 1;
    const size_t x_bytes = mlxr_row_bytes(form, K), panel_bytes = (size_t)(block * 16 * bytes);
    float *sums = (float *)(scratch + 2 * (size_t)most * panel_bytes);
    for (int unit = first; unit < last; unit += most) {
        const int units = last - unit < most ? last - unit : most;
        for (int k0 = 0; k0 < K; k0 += block) {
            int k1 = k0 + block < K ? k0 + block : K;
            if (form == MLXR_ROWS_BF16) k1 = (k1 + 31) / 32 * 32;
            for (int j = 0; j < units; j++)
                mlxr_unpack_unit(s, unit + j, k0, k1, scratch + 2 * (size_t)j * panel_bytes, panel_bytes);
            for (int row = 0; row < m; row += rows) {
                const int count = m - row < rows ? m - row : rows;
                const uint8_t *from = x + (size_t)row * x_bytes + (size_t)(k0 * bytes);
                for (int j = 0; j < units; j++) {
                    const int waiting = block < K ? row / rows * most + j : 0;
                    float *y = sums + (size_t)waiting * MLXR_TILE_FLOATS;
                    // Each unit brings its part of the next rows closer.
                    const int near = rows * j / units, far = rows * (j + 1) / units;
                    if (k1 >= K) mlxr_near_outputs(out, s, unit + j, row, count, column);
                    mlxr_tile(form, from, x_bytes, count, scratch + 2 * (size_t)j * panel_bytes, panel_bytes, k1 - k0, y,
                              k0 > 0, from + (size_t)(rows + near) * x_bytes, far - near);
                    if (k1 >= K) mlxr_finish_unit(out, s, unit + j, row, count, column, y);
                }
            }
        }
    }
}

MLXR_INLINE void mlxr_many(const mlxr_worker *w, int m, int K, int form, const mlxr_segment *segments, int n,
                           const uint8_t *x, uint8_t *scratch, const mlxr_output *out) {
    int64_t cost = 0;
    for (int i = 0; i < n; i++) cost += mlxr_units(&segments[i]);
    mlxr_split split = mlxr_split_start(w, cost);
    for (int i = 0, column = 0; i < n; column += segments[i++].rows) {
        int first, last;
        mlxr_split_next(&split, 1, mlxr_units(&segments[i]), &first, &last);
        mlxr_many_units(m, K, form, &segments[i], first, last, column, x, scratch, out);
    }
}

// The whole projection. `few`: the most rows for which panels are read as they lie; `wide`: the form of more. `out` may be
// the residual, and overlaps nothing else.
MLXR_OUTLINE void mlxr_project(mlxr_worker *w, const mlxr_input *in, const mlxr_segment *segments, int n, int few, int wide,
                               const mlxr_output *out) {
    const int m = in->rows, K = in->columns;
    float *row = (float *)w->scratch;
    uint8_t *own = w->scratch + mlxr_row_floats(K) * 4, *shared = w->shared;
    if (m > few) {
        const uint8_t *x = mlxr_inputs(w, in, wide, 0, 0, row, own, shared);
        mlxr_barrier(w);
        mlxr_tiles_on();
        if (wide == MLXR_ROWS_BF16) mlxr_many(w, m, K, MLXR_ROWS_BF16, segments, n, x, own, out);
        else mlxr_many(w, m, K, MLXR_ROWS_F32, segments, n, x, own, out);
        mlxr_tiles_off();
        return;
    }
    int used = 0;
    for (int i = 0; i < n; i++) {
        used |= 1 << mlxr_form(segments[i].matrix, m);
        if (segments[i].up) used |= 1 << mlxr_form(segments[i].up_matrix, m);
    }
    const uint8_t *x[MLXR_FORMS];
    size_t x_bytes[MLXR_FORMS];
    for (int form = 0; form < MLXR_FORMS; form++) {
        if (!(used >> form & 1)) continue;
        x_bytes[form] = mlxr_row_bytes(form, K);
        x[form] = mlxr_inputs(w, in, form, m == 1, 1, row, own, shared);
        own += x_bytes[form];
        shared += x_bytes[form] * (size_t)(m + MLXR_MOST_TILE_ROWS);
    }
    if (m > 1) mlxr_barrier(w);
    const int columns = MLXR_TRANSPOSES && used >> MLXR_ROWS_BF16 & 1;
    if (columns) {
        mlxr_columns(x[MLXR_ROWS_BF16], K, m, own);
        x[MLXR_ROWS_BF16] = own;
        mlxr_tiles_on();
    }
    if (out->lower && out->lower(w, in, out, x[MLXR_ROWS_I8], x_bytes[MLXR_ROWS_I8])) mlxr_barrier(w);
    mlxr_few(w, m, segments, n, x, x_bytes, out);
    if (columns) mlxr_tiles_off();
}
