// What the program and a card do in turns, where the program has the experts of a model that the card runs.
//
// The card writes what the experts read into memory that both see, and then a number, one from each of its blocks. The
// program computes, writes the sum there, and then the same number. Neither writes again before the other has answered,
// so each part of the memory exists once. All threads look for the card's numbers, without sleeping while a step runs.
//
// The card may leave a step before its end, and begin another: then what it gives is not what the program expects next,
// and the program comes to the end of its own step without computing, to begin the other one.
#define MLXR_CARD_BLOCKS 16  // BLOCKS of runtime/hosts/handover.py
#define MLXR_CARD_YIELD_NS 2000000
#define MLXR_CARD_NAP_NS 50000
#define MLXR_CARD_IDLE_NS 300000000    // for how long it looks for a next step after one
#define MLXR_CARD_LONG_NAP_NS 1000000  // between looks after that time
#define MLXR_CARD_LEFT_NS 60000000000  // after which a card that gives nothing has left the step

// The beginning of the memory; as in runtime/hosts/handover.py.
typedef struct {
    _Atomic uint32_t given[MLXR_CARD_BLOCKS];  // by each block of the card: the number of what it gave last
    int32_t tokens, program, place;            // of the step, and what of it was given; written before the numbers
    _Alignas(128) _Atomic uint32_t answered;   // the number of what was given back last
    _Alignas(128) _Atomic uint32_t stop;       // 1: nobody waits any more; 2: nor once the card has begun no step for long
} mlxr_turns;

struct mlxr_links {
    mlxr_turns *turns;
    const float *x;
    const int32_t *experts;
    const float *weights;
    float *sum;
    uint32_t number;  // of what was given back last
    int32_t place;    // of the step, how many have been given back
    int32_t goes_on;  // whether the card has given what comes next, as thread 0 saw it
    int32_t rests;    // whether no expert is computed: the sums do not matter
};

static int mlxr_has_given(const struct mlxr_links *l) {
    for (int i = 0; i < MLXR_CARD_BLOCKS; ++i)
        if (atomic_load_explicit(&l->turns->given[i], memory_order_acquire) != l->number + 1) return 0;
    return 1;
}

// Waits until the card has given something. Returns 0 if nobody waits any more, or after a time.
static int mlxr_await_card(const mlxr_worker *w, const struct mlxr_links *l, int64_t idle_ns) {
    int *crowded = &w->model->pool->members[w->tid].crowded;
    int64_t start = 0;
    for (int turn = 1;; ++turn) {
        if (mlxr_has_given(l)) return 1;
        const uint32_t stop = atomic_load_explicit(&l->turns->stop, memory_order_acquire);
        if (stop == 1) return 0;
        mlxr_relax();
        if (turn % MLXR_POLLS_PER_CLOCK) continue;
        int64_t now = mlxr_now_ns();
        if (!start) start = now;
        const int64_t waited = now - start;
        if (waited > idle_ns || (stop && waited > MLXR_CARD_IDLE_NS)) return 0;
        const long nap = waited > MLXR_CARD_IDLE_NS ? MLXR_CARD_LONG_NAP_NS : MLXR_CARD_NAP_NS;
        if (waited <= MLXR_SPIN_NS) continue;
        if (waited <= MLXR_CARD_YIELD_NS && *crowded <= 0) {
            mlxr_yield(crowded);
            continue;
        }
        if (*crowded > 0) --*crowded;
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
    }
}

// The numbers of n that fall to this thread: whole lines of 16.
static void mlxr_share_lines(const mlxr_worker *w, size_t n, size_t *first, size_t *last) {
    const size_t lines = (n + 15) / 16;
    *first = lines * (size_t)w->tid / (size_t)w->threads * 16;
    *last = lines * (size_t)(w->tid + 1) / (size_t)w->threads * 16;
    if (*last > n) *last = n;
    if (*first > n) *first = n;
}

static void mlxr_take_routed(mlxr_worker *w, const mlxr_batch *b, float *x, int32_t *experts, float *weights, int width,
                             int top_k) {
    struct mlxr_links *l = b->links;
    const int here = mlxr_await_card(w, l, MLXR_CARD_LEFT_NS) && l->turns->place == l->place;
    if (w->tid == 0) l->goes_on = here;
    size_t first, last;
    mlxr_share_lines(w, (size_t)b->tokens * (size_t)width, &first, &last);
    memcpy(x + first, l->x + first, (last - first) * sizeof *x);
    mlxr_share_lines(w, (size_t)b->tokens * (size_t)top_k, &first, &last);
    for (size_t i = first; i < last; ++i) experts[i] = here && !l->rests ? l->experts[i] : -1;
    if (weights) memcpy(weights + first, l->weights + first, (last - first) * sizeof *weights);
}

static void mlxr_give_sum(mlxr_worker *w, const mlxr_batch *b, const float *x, int width) {
    struct mlxr_links *l = b->links;
    if (!l->goes_on) return;
    size_t first, last;
    mlxr_share_lines(w, (size_t)b->tokens * (size_t)width, &first, &last);
    memcpy(l->sum + first, x + first, (last - first) * sizeof *x);
    mlxr_barrier(w);
    if (w->tid) return;
    ++l->place;
    atomic_store_explicit(&l->turns->answered, ++l->number, memory_order_release);
}
