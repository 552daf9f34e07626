// Projections of a mixture of experts: `count` matrices, one after the other in memory, of which each token goes through
// the `top_k` that were chosen for it.
//
// What every token goes through as well, a shared expert, is done in the same call: its rows are the tokens.
//
// A (token, choice) pair is a row. Pairs are sorted by expert, so that each chosen expert is one product of its rows, by
// the same ways as any projection, and its weights are read once a step; those of the others are not read at all.
//
// Weights that are mapped from a file may not be in memory. Where the runtime says so (mlxr_read_ahead), threads ask the
// system for those of the experts that come next, and for what is multiplied after them, and go on.
#include <sys/mman.h>
#include <unistd.h>

// What was chosen, and what becomes of it.
typedef struct {
    const int32_t *experts;  // [tokens][top_k]; -1: another rank's, whose inputs are not read nor its outputs written
    const float *weights;    // [tokens][top_k]: factors of the outputs that are summed, else of the inputs; NULL: none
    int tokens, count, top_k;
    int inputs_of_pairs;  // inputs are [tokens * top_k] rows, else [tokens]
    int summed;           // outputs are summed over a token's choices, else kept apart
    size_t stride, up_stride;  // bytes from one expert's matrix to the next one's
    const uint8_t *later;      // the tensor that the outputs are multiplied with next, by the same choice; NULL: none
    size_t later_stride;
} mlxr_choice;

// Pairs sorted by expert: those of expert e are [starts[e], starts[e + 1]); those of other ranks' come before them all.
typedef struct {
    int32_t *starts;   // [count + 2], the last one scratch
    int32_t *sources;  // a pair's row of the inputs
    int32_t *places;   // its row of the outputs
    float *factors;    // its weight
} mlxr_pairs;

#define mlxr_lines(bytes) (((size_t)(bytes) + 63) / 64 * 64)
#define mlxr_pairs_bytes(count, pairs) (mlxr_lines(4 * ((size_t)(count) + 2)) + 3 * mlxr_lines(4 * (size_t)(pairs)))

// Sorts the pairs into `memory`.
MLXR_OUTLINE mlxr_pairs mlxr_sort_pairs(const mlxr_choice *c, uint8_t *memory) {
    const int pairs = c->tokens * c->top_k;
    const size_t step = mlxr_lines(4 * (size_t)pairs);
    uint8_t *lists = memory + mlxr_lines(4 * ((size_t)c->count + 2));
    const mlxr_pairs to = {(int32_t *)memory, (int32_t *)lists, (int32_t *)(lists + step), (float *)(lists + 2 * step)};
    // Counts two places on: their sums are then starts one place on, which filling moves to where they belong.
    memset(to.starts, 0, 4 * ((size_t)c->count + 2));
    for (int p = 0; p < pairs; p++) to.starts[c->experts[p] + 2]++;
    for (int e = 2; e <= c->count; e++) to.starts[e] += to.starts[e - 1];
    for (int p = 0; p < pairs; p++) {
        const int at = to.starts[c->experts[p] + 1]++, token = p / c->top_k;
        to.sources[at] = c->inputs_of_pairs ? p : token;
        to.places[at] = c->summed ? token : p;
        to.factors[at] = c->weights ? c->weights[p] : 1.0f;
    }
    return to;
}

// Units [first, last) of one expert's outputs from its m rows of inputs.
MLXR_INLINE void mlxr_expert(int m, int K, int few, int wide, const mlxr_segment *s, int first, int last,
                             const uint8_t *const *x, const size_t *x_bytes, uint8_t *own, const mlxr_output *out) {
    if (m > few) {
        mlxr_tiles_on();
        if (wide == MLXR_ROWS_BF16) mlxr_many_units(m, K, MLXR_ROWS_BF16, s, first, last, 0, x[wide], own, out);
        else mlxr_many_units(m, K, MLXR_ROWS_F32, s, first, last, 0, x[wide], own, out);
        mlxr_tiles_off();
        return;
    }
    const uint8_t *rows[MLXR_FORMS];
    for (int form = 0; form < MLXR_FORMS; form++) rows[form] = x[form];
    const int columns = MLXR_TRANSPOSES && (mlxr_form(s->matrix, m) == MLXR_ROWS_BF16 ||
                                            (s->up && mlxr_form(s->up_matrix, m) == MLXR_ROWS_BF16));
    if (columns) {
        mlxr_columns(x[MLXR_ROWS_BF16], K, m, own);
        rows[MLXR_ROWS_BF16] = own;
        mlxr_tiles_on();
    }
    const int all = mlxr_panels(s), end = s->up ? last : 2 * last < all ? 2 * last : all;
    mlxr_few_panels(m, s, s->up ? first : 2 * first, end, 0, rows, x_bytes, out);
    if (columns) mlxr_tiles_off();
}

// What a thread asks for beyond what it has come to, in bytes, and in one call, which takes no more than the disk's
// read-ahead of one request.
#define MLXR_MOST_ASKED ((size_t)16 << 20)
#define MLXR_ASKED_AT_ONCE ((size_t)128 << 10)

// Has the system read pages of a mapped file that are not in memory, without waiting. Counts the bytes.
MLXR_OUTLINE size_t mlxr_ask(mlxr_worker *w, const uint8_t *from, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)from % page;
    from -= before;
    for (size_t at = 0; at < bytes + before; at += MLXR_ASKED_AT_ONCE) {
        const size_t left = bytes + before - at;
        madvise((void *)(uintptr_t)(from + at), left < MLXR_ASKED_AT_ONCE ? left : MLXR_ASKED_AT_ONCE, MADV_WILLNEED);
    }
    w->asked += bytes;
    return bytes;
}

// Panels [first, last) of expert e's outputs.
MLXR_INLINE size_t mlxr_ask_panels(mlxr_worker *w, const mlxr_choice *c, const mlxr_segment *s, int e, int first, int last) {
    if (first >= last) return 0;
    const size_t a = s->matrix->panel_bytes, b = s->up ? s->up_matrix->panel_bytes : 0, n = (size_t)(last - first);
    size_t bytes = mlxr_ask(w, s->w + (size_t)e * c->stride + (size_t)first * a, n * a);
    if (s->up) bytes += mlxr_ask(w, s->up + (size_t)e * c->up_stride + (size_t)first * b, n * b);
    return bytes;
}

// This thread's part of the later tensor of all chosen experts, unless that is more than it should ask for.
MLXR_INLINE void mlxr_ask_later(mlxr_worker *w, const mlxr_choice *c, const int32_t *starts) {
    int experts = 0, number = 0;
    for (int e = 0; e < c->count; e++) experts += starts[e + 1] > starts[e];
    if (!c->later || (size_t)experts * c->later_stride > MLXR_MOST_ASKED * (size_t)w->threads) return;
    for (int e = 0; e < c->count; e++)
        if (starts[e + 1] > starts[e] && number++ % w->threads == w->tid)
            mlxr_ask(w, c->later + (size_t)e * c->later_stride, c->later_stride);
}

// What a unit of an expert with m rows costs: a time to read it, and some more for each row.
MLXR_INLINE int64_t mlxr_expert_cost(int m) { return m ? 32 + m : 0; }

// How far a thread has asked for the weights that fall to it.
typedef struct {
    mlxr_split coming;
    int next;            // the next expert
    size_t asked, done;  // bytes that were asked for, and that it has come to
} mlxr_ahead;

// Asks for more. Of sums, units [first, last) of each expert are this thread's.
MLXR_OUTLINE void mlxr_ask_more(mlxr_worker *w, mlxr_ahead *a, const mlxr_choice *c, const mlxr_segment *s, int units,
                                const int32_t *starts, int first, int last) {
    const int panels = mlxr_panels(s), of_unit = s->up ? 1 : 2;
    while (a->next < c->count && a->asked < a->done + MLXR_MOST_ASKED) {
        const int e = a->next++, m = starts[e + 1] - starts[e];
        if (m && !c->summed) mlxr_split_next(&a->coming, mlxr_expert_cost(m), units, &first, &last);
        const int to = of_unit * last < panels ? of_unit * last : panels;
        if (m) a->asked += mlxr_ask_panels(w, c, s, e, of_unit * first, to);
        if (a->next == c->count && c->tokens <= MLXR_CHUNK) mlxr_ask_later(w, c, starts);
    }
}

// Columns [from, to) of all tokens' outputs start as the residual, or as zeros.
MLXR_INLINE void mlxr_start_sums(const mlxr_output *out, int tokens, int from, int to) {
    if (from >= to || out->residual == out->out) return;
    for (int t = 0; t < tokens; t++) {
        const size_t place = (size_t)t * (size_t)out->width + (size_t)from, bytes = 4 * (size_t)(to - from);
        if (out->residual) memcpy(out->out + place, out->residual + place, bytes);
        else memset(out->out + place, 0, bytes);
    }
}

// Products that every token goes through, beside its chosen experts: all of the same inputs.
typedef struct {
    const mlxr_input *inputs;  // a row for each token; NULL: those of the experts
    const struct mlxr_always {
        mlxr_segment segment;
        mlxr_output output;
        int few, wide;
    } *products;
    int count;
} mlxr_shared;

// The forms, as bits, that m rows of inputs of a segment need.
MLXR_INLINE int mlxr_forms_of(const mlxr_segment *s, int m, int few, int wide) {
    if (m > few) return 1 << wide;
    return 1 << mlxr_form(s->matrix, m) | (s->up ? 1 << mlxr_form(s->up_matrix, m) : 0);
}

// Prepares rows in the forms `used`, in *own if `alone`, else in *shared, which it moves on; but not those that x has.
MLXR_INLINE void mlxr_prepare(mlxr_worker *w, const mlxr_input *in, int used, int alone, float *row, uint8_t **own,
                              uint8_t **shared, const uint8_t **x, size_t *x_bytes) {
    for (int form = 0; form < MLXR_FORMS; form++) {
        if (!(used >> form & 1) || x[form]) continue;
        uint8_t **to = alone ? own : shared;
        x_bytes[form] = mlxr_row_bytes(form, in->columns);
        x[form] = mlxr_inputs(w, in, form, alone, 1, row, *own, *shared);
        *to += x_bytes[form] * (size_t)(in->rows + MLXR_MOST_TILE_ROWS);
    }
}

// What m tokens go through besides. Of sums (`summed`) units [first, last), else this thread's.
MLXR_INLINE void mlxr_always_products(mlxr_worker *w, int K, int m, const mlxr_shared *always, int summed, int first,
                                      int last, const uint8_t *const *x, const size_t *x_bytes,
                                      uint8_t *own) {
    for (int i = 0; i < always->count; i++) {
        const struct mlxr_always *p = &always->products[i];
        if (!summed) mlxr_share(w, mlxr_units(&p->segment), &first, &last);
        if (first < last) mlxr_expert(m, K, p->few, p->wide, &p->segment, first, last, x, x_bytes, own, &p->output);
    }
}

// The whole projection. `all`: the first expert's matrices; the next ones' follow, and so their biases. `few` and `wide` as
// for mlxr_project. Outputs are [tokens * top_k][rows]; sums of choices are [tokens][rows], added to the residual: then
// threads share the columns, else the experts' units by their cost. `always` comes last, to the same sums: its outputs
// have as many columns as the experts'. (Where nothing is summed it comes first: pages of experts are read meanwhile.)
// Threads share it evenly, whatever they have of the experts: of its rows, which are more, nobody knows the cost well
// enough.
MLXR_OUTLINE void mlxr_experts(mlxr_worker *w, const mlxr_input *inputs, const mlxr_choice *choice,
                               const mlxr_segment *all, int few, int wide, const mlxr_output *output,
                               const mlxr_shared *always) {
    const int K = inputs->columns, all_pairs = choice->tokens * choice->top_k, alone = choice->tokens == 1;
    const int single = alone && !choice->inputs_of_pairs;  // one row serves all
    const mlxr_pairs sorted = mlxr_sort_pairs(choice, w->scratch);
    const int elsewhere = sorted.starts[0], pairs = all_pairs - elsewhere;
    const int most = always->inputs && always->inputs->columns > K ? always->inputs->columns : K;
    float *row = (float *)(w->scratch + mlxr_pairs_bytes(choice->count, all_pairs));
    uint8_t *own = (uint8_t *)row + mlxr_row_floats(most) * 4, *shared = w->shared;
    const int units = mlxr_units(all);
    int64_t cost = 0;
    int used = 0;
    for (int e = 0; e < choice->count; e++) {
        const int m = sorted.starts[e + 1] - sorted.starts[e];
        if (!m) continue;
        cost += mlxr_expert_cost(m) * units;
        used |= mlxr_forms_of(all, m, few, wide);
    }
    mlxr_input in = *inputs;
    in.rows = single ? 1 : pairs;
    in.gather = single ? NULL : sorted.sources + elsewhere;
    const uint8_t *x[MLXR_FORMS] = {NULL}, *always_x[MLXR_FORMS] = {NULL};
    size_t x_bytes[MLXR_FORMS] = {0}, always_bytes[MLXR_FORMS] = {0};
    mlxr_prepare(w, &in, used, alone, row, &own, &shared, x, x_bytes);
    if (always->count) {
        used = 0;
        for (int i = 0; i < always->count; i++) {
            const struct mlxr_always *p = &always->products[i];
            used |= mlxr_forms_of(&p->segment, choice->tokens, p->few, p->wide);
        }
        in = always->inputs ? *always->inputs : *inputs;
        in.rows = choice->tokens;
        for (int form = 0; single && !always->inputs && form < MLXR_FORMS; form++) {
            always_x[form] = x[form];
            always_bytes[form] = x_bytes[form];
        }
        mlxr_prepare(w, &in, used, alone, row, &own, &shared, always_x, always_bytes);
    }
    if (!alone) mlxr_barrier(w);
    int first = 0, last = 0;
    if (choice->summed) {
        mlxr_share(w, units, &first, &last);
        const int wide_unit = all->up ? 16 : 32, to = last * wide_unit;
        mlxr_start_sums(output, choice->tokens, first * wide_unit, to < all->rows ? to : all->rows);
    }
    mlxr_split split = mlxr_split_start(w, cost);
    mlxr_ahead ahead = {.coming = split};
    if (w->model->reads_ahead) mlxr_ask_more(w, &ahead, choice, all, units, sorted.starts, first, last);
    if (!choice->summed) mlxr_always_products(w, in.columns, choice->tokens, always, 0, 0, 0, always_x, always_bytes, own);
    for (int e = 0; e < choice->count; e++) {
        const int start = sorted.starts[e], m = sorted.starts[e + 1] - start;
        if (!m) continue;
        if (!choice->summed) mlxr_split_next(&split, mlxr_expert_cost(m), units, &first, &last);
        if (first >= last) continue;
        if (w->model->reads_ahead) {
            mlxr_ask_more(w, &ahead, choice, all, units, sorted.starts, first, last);
            ahead.done += (size_t)((all->up ? 1 : 2) * (last - first)) * (size_t)mlxr_panel_cost(all);
        }
        mlxr_segment s = *all;
        s.w += (size_t)e * choice->stride;
        if (s.up) s.up += (size_t)e * choice->up_stride;
        mlxr_output out = *output;
        if (out.bias) out.bias += (size_t)e * (size_t)s.rows;
        if (out.up_bias) out.up_bias += (size_t)e * (size_t)s.rows;
        out.places = sorted.places + start;
        out.factors = sorted.factors + start;
        if (choice->summed) out.residual = out.out;
        const uint8_t *at[MLXR_FORMS];
        for (int form = 0; form < MLXR_FORMS; form++)
            at[form] = single || !x[form] ? x[form] : x[form] + (size_t)(start - elsewhere) * x_bytes[form];
        mlxr_expert(m, K, few, wide, &s, first, last, at, x_bytes, own, &out);
    }
    if (choice->summed) mlxr_always_products(w, in.columns, choice->tokens, always, 1, first, last, always_x, always_bytes, own);
}
