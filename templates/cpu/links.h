// What a rank exchanges with the others in the middle of a step, without the runtime.
//
// Ranks of a stage that share a machine map each other's activations: all threads add the addends where the kernels left
// them, and nothing is copied. Otherwise thread 0 sends and receives over connected sockets, and looks for data without
// sleeping, since the other ranks are about to be as far. What the runtime does not connect, it does itself: `call`.
//
// A step may be of two batches, if rows go over sockets: then a sum of one is under way while the other computes.
#include <poll.h>
#include <sys/socket.h>

enum { MLXR_ALL_SUM, MLXR_SEND, MLXR_RECEIVE, MLXR_GATHER };  // COLLECTIVES of compiler/artifact/parallel/rank_plan.py

// As in runtime/hosts/cpu/parallel/program_links.py.
struct mlxr_links {
    void (*call)(int32_t kind, const float *x, float *out, int32_t rows, int32_t columns);
    const int32_t *sockets;   // [tensor] of the ranks of this stage; its own is not used
    uint8_t *const *memory;   // [tensor] of each of them a board, then its activations; NULL: other machines
    float *scratch;           // of sums over sockets, else NULL: as large as an addend, and as tensor short ones
    int32_t tensor, tensor_rank;
    int32_t previous, next;   // sockets of ranks of the stages beside this one; -1: none
    int32_t connected;        // 0: `call` does everything
    int32_t lost;             // the socket that failed; -1: none
    int32_t error;            // its errno; 0: the other side has ended
    uint32_t sums;            // how many there were in memory
    struct mlxr_sum *under_way;  // [2] a sum of each batch of a step of two; NULL: steps of one
    uint64_t beside;          // bytes of sums that were sent and received without waiting, beside compute
};

// Where a rank tells the others of its stage how far it is. Each word is alone on its lines.
typedef struct {
    _Alignas(128) _Atomic uint32_t ready;  // sums whose addend is complete
    uint64_t offset[2];                    // of the newest two addends in the activations, by their numbers
    _Alignas(128) _Atomic uint32_t done;   // sums of the steps that have ended
} mlxr_board;

#define MLXR_BOARD_BYTES 4096
#define MLXR_SHORT_BYTES 32768        // up to here, everything goes to all at once
#define MLXR_SEND_BYTES 131072        // sent before the next look at what has come
// For how long a rank looks for what the others send before it sleeps. It does not yield meanwhile: the processes that
// it would yield to, like the launcher of the ranks, take milliseconds, and a sleeper is woken at once.
#define MLXR_LOOK_NS 300000
#define MLXR_NAP_NS 20000
#define MLXR_SLEEP_MS 1000
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0  // Python ignores SIGPIPE
#endif

static void mlxr_lose(struct mlxr_links *l, int socket, int error) {
    if (l->lost >= 0) return;
    l->lost = socket;
    l->error = error;
}

// Rows on their way to one rank, and from it.
typedef struct {
    int socket;
    const char *out;
    size_t to_send;
    char *in;
    size_t to_receive;
} mlxr_swap;

// Sends and receives what one call does without waiting. Returns whether anything moved.
static int mlxr_move(struct mlxr_links *l, mlxr_swap *s) {
    ssize_t sent = 0, received = 0;
    if (s->to_send) {
        sent = send(s->socket, s->out, s->to_send < MLXR_SEND_BYTES ? s->to_send : MLXR_SEND_BYTES,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) s->out += sent, s->to_send -= (size_t)sent;
        else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) mlxr_lose(l, s->socket, errno);
    }
    if (s->to_receive) {
        received = recv(s->socket, s->in, s->to_receive, MSG_DONTWAIT);
        if (received > 0) s->in += received, s->to_receive -= (size_t)received;
        else if (received == 0) mlxr_lose(l, s->socket, 0);
        else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) mlxr_lose(l, s->socket, errno);
    }
    return sent > 0 || received > 0;
}

// Until everything has been sent and received, or a rank is lost.
static void mlxr_swap_all(struct mlxr_links *l, mlxr_swap *swaps, int count) {
    int64_t idle_since = 0;
    for (int turn = 1; l->lost < 0; ++turn) {
        int moved = 0, open = 0;
        for (int i = 0; i < count; ++i) {
            if (swaps[i].to_send || swaps[i].to_receive) moved |= mlxr_move(l, &swaps[i]);
            open |= swaps[i].to_send || swaps[i].to_receive;
        }
        if (!open) return;
        if (moved) {
            idle_since = 0;
            continue;
        }
        if (turn % MLXR_POLLS_PER_CLOCK) continue;
        int64_t now = mlxr_now_ns();
        if (!idle_since) idle_since = now;
        if (now - idle_since < MLXR_LOOK_NS) continue;
        struct pollfd polled[count];
        for (int i = 0; i < count; ++i) {
            short events = (short)((swaps[i].to_send ? POLLOUT : 0) | (swaps[i].to_receive ? POLLIN : 0));
            polled[i] = (struct pollfd){.fd = events ? swaps[i].socket : -1, .events = events};
        }
        poll(polled, (nfds_t)count, MLXR_SLEEP_MS);
    }
}

// out[i] = the sum of addends[r][i] over the ranks, in their order. out may be one of them.
static void mlxr_add(const float *const *addends, int count, float *out, size_t first, size_t last) {
    const float *a = addends[0], *b = addends[1];
    for (; count == 2 && first < last; ++first) out[first] = a[first] + b[first];
    for (; first < last; first += 1024) {
        size_t end = first + 1024 < last ? first + 1024 : last;
        float sums[1024];
        for (size_t i = first; i < end; ++i) sums[i - first] = a[i] + b[i];
        for (int r = 2; r < count; ++r)
            for (size_t i = first; i < end; ++i) sums[i - first] += addends[r][i];
        memcpy(out + first, sums, (end - first) * sizeof *sums);
    }
}

// A sum over sockets, by thread 0. Long rows are added in parts, each by one rank, which then sends the sum.
typedef struct mlxr_sum {
    const float *x;
    float *out;
    size_t n;
    enum { MLXR_NO_SUM, MLXR_SUM_WAITS, MLXR_ADDENDS, MLXR_SUMS } stage;  // what is on its way
    mlxr_swap *swaps;  // [tensor]
    int others;        // how many of these there are
} mlxr_sum;

// The part of a sum that a rank adds.
static size_t mlxr_rows_of(const struct mlxr_links *l, const mlxr_sum *s, int r, size_t *end) {
    int is_short = s->n * sizeof *s->x <= MLXR_SHORT_BYTES;
    *end = is_short ? s->n : s->n * (size_t)(r + 1) / (size_t)l->tensor;
    return is_short ? 0 : s->n * (size_t)r / (size_t)l->tensor;
}

static void mlxr_send_addends(struct mlxr_links *l, mlxr_sum *s) {
    size_t end, first, last, begin = mlxr_rows_of(l, s, l->tensor_rank, &end), part = end - begin;
    s->stage = MLXR_ADDENDS;
    s->others = 0;
    for (int r = 0; r < l->tensor; ++r) {
        if (r == l->tensor_rank) continue;
        first = mlxr_rows_of(l, s, r, &last);
        s->swaps[s->others++] =
            (mlxr_swap){l->sockets[r], (const char *)(s->x + first), (last - first) * sizeof *s->x,
                        (char *)(l->scratch + (size_t)r * part), part * sizeof *s->x};
    }
}

// All addends of this rank's part are here.
static void mlxr_send_sums(struct mlxr_links *l, mlxr_sum *s) {
    size_t end, first, last, begin = mlxr_rows_of(l, s, l->tensor_rank, &end), part = end - begin;
    const float *addends[l->tensor];
    for (int r = 0; r < l->tensor; ++r)
        addends[r] = r == l->tensor_rank ? s->x + begin : l->scratch + (size_t)r * part;
    mlxr_add(addends, l->tensor, s->out + begin, 0, part);
    s->stage = part == s->n ? MLXR_NO_SUM : MLXR_SUMS;
    s->others = 0;
    for (int r = 0; r < l->tensor && s->stage; ++r) {
        if (r == l->tensor_rank) continue;
        first = mlxr_rows_of(l, s, r, &last);
        s->swaps[s->others++] = (mlxr_swap){l->sockets[r], (const char *)(s->out + begin), part * sizeof *s->x,
                                            (char *)(s->out + first), (last - first) * sizeof *s->x};
    }
}

static void mlxr_next_stage(struct mlxr_links *l, mlxr_sum *s) {
    if (s->stage == MLXR_SUM_WAITS) mlxr_send_addends(l, s);
    else if (s->stage == MLXR_ADDENDS) mlxr_send_sums(l, s);
    else s->stage = MLXR_NO_SUM;
}

static void mlxr_finish_sum(struct mlxr_links *l, mlxr_sum *s) {
    while (s->stage && l->lost < 0) {
        if (s->stage != MLXR_SUM_WAITS) mlxr_swap_all(l, s->swaps, s->others);
        if (l->lost < 0) mlxr_next_stage(l, s);
    }
}

static void mlxr_sum_by_sockets(struct mlxr_links *l, const float *x, float *out, size_t n) {
    mlxr_swap swaps[l->tensor];
    mlxr_sum sum = {.x = x, .out = out, .n = n, .stage = MLXR_SUM_WAITS, .swaps = swaps};
    mlxr_finish_sum(l, &sum);
}

// Goes on, without waiting, with the sums of a step of two batches. All ranks send one sum after the other.
static void mlxr_push_sums(struct mlxr_links *l) {
    mlxr_sum *s = l->under_way;
    if (!s[0].stage || s[1].stage > MLXR_SUM_WAITS) ++s;
    while (s->stage && l->lost < 0) {
        int open = 0;
        for (int i = 0; s->stage > MLXR_SUM_WAITS && i < s->others && l->lost < 0; ++i) {
            mlxr_swap *swap = &s->swaps[i];
            size_t left = swap->to_send + swap->to_receive;
            while ((swap->to_send || swap->to_receive) && mlxr_move(l, swap)) continue;
            open |= swap->to_send || swap->to_receive;
            l->beside += left - swap->to_send - swap->to_receive;
        }
        if (open || l->lost >= 0) return;
        mlxr_next_stage(l, s);
    }
}

static void mlxr_start_sum(struct mlxr_links *l, int batch, const float *x, float *out, size_t n) {
    mlxr_sum *s = &l->under_way[batch];
    s->x = x, s->out = out, s->n = n, s->stage = MLXR_SUM_WAITS;
    mlxr_push_sums(l);
}

// Of a batch whose sum, if there is one under way, is the older one.
static __attribute__((unused)) void mlxr_await_sum(struct mlxr_links *l, int batch) {
    mlxr_finish_sum(l, &l->under_way[batch]);
    mlxr_push_sums(l);
}

static mlxr_board *mlxr_board_of(const struct mlxr_links *l, int r) { return (mlxr_board *)l->memory[r]; }

// Waits until a rank has counted up to a number of sums. One that takes long may be lost: then its socket has ended.
static void mlxr_await_rank(struct mlxr_links *l, int r, _Atomic uint32_t *word, uint32_t number) {
    int64_t start = 0;
    for (int turn = 1; (int32_t)(atomic_load_explicit(word, memory_order_acquire) - number) < 0; ++turn) {
        mlxr_relax();
        if (turn % MLXR_POLLS_PER_CLOCK) continue;
        int64_t now = mlxr_now_ns();
        if (!start) start = now;
        if (now - start < MLXR_LOOK_NS) continue;
        nanosleep(&(struct timespec){.tv_nsec = MLXR_NAP_NS}, NULL);
        char byte;
        ssize_t seen = recv(l->sockets[r], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
        if (seen == 0 || (seen < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            mlxr_lose(l, l->sockets[r], seen ? errno : 0);
            return;
        }
    }
}

static void mlxr_await_ranks(struct mlxr_links *l, int done) {
    for (int r = 0; r < l->tensor && l->lost < 0; ++r)
        if (r != l->tensor_rank)
            mlxr_await_rank(l, r, done ? &mlxr_board_of(l, r)->done : &mlxr_board_of(l, r)->ready, l->sums);
}

// By all threads. An addend stays until all ranks have come to the next sum, or begin the next step: see CpuCollective.
static void mlxr_sum_in_memory(mlxr_worker *w, struct mlxr_links *l, const float *x, float *out, size_t n) {
    mlxr_board *own = mlxr_board_of(l, l->tensor_rank);
    if (w->tid == 0) {
        own->offset[++l->sums % 2] = (uint64_t)((const uint8_t *)x - w->model->activations);
        atomic_store_explicit(&own->ready, l->sums, memory_order_release);
        mlxr_await_ranks(l, 0);
    }
    mlxr_barrier(w);
    if (l->lost < 0) {
        const float *addends[l->tensor];
        for (int r = 0; r < l->tensor; ++r)
            addends[r] = (const float *)(l->memory[r] + MLXR_BOARD_BYTES + mlxr_board_of(l, r)->offset[l->sums % 2]);
        size_t lines = (n + 15) / 16, threads = (size_t)w->threads, tid = (size_t)w->tid;
        size_t first = lines * tid / threads * 16, last = lines * (tid + 1) / threads * 16;
        if (last > n) last = n;
        // Ranks that read the same lines at the same time wait for each other: each begins at another part.
        size_t begin = first + (last - first) * (size_t)l->tensor_rank / (size_t)l->tensor / 16 * 16;
        mlxr_add(addends, l->tensor, out, begin, last);
        mlxr_add(addends, l->tensor, out, first, begin);
    }
}

// Before a step, by its caller: the others have read the last addend of the step before.
static void mlxr_begin_sums(struct mlxr_links *l) {
    if (l->memory) mlxr_await_ranks(l, 1);
}

// After a step, by its caller.
static void mlxr_end_sums(struct mlxr_links *l) {
    if (l->memory) atomic_store_explicit(&mlxr_board_of(l, l->tensor_rank)->done, l->sums, memory_order_release);
}

static __attribute__((unused)) void mlxr_exchange(mlxr_worker *w, const mlxr_batch *b, int kind, const float *x,
                                                  float *out, int rows, int columns) {
    struct mlxr_links *l = b->links;
    size_t n = (size_t)rows * (size_t)columns;
    if (kind == MLXR_ALL_SUM && l->under_way) {
        if (w->tid == 0 && l->lost < 0) mlxr_start_sum(l, !b->second, x, out, n);
        return;
    }
    if (l->connected && kind == MLXR_ALL_SUM && l->memory) {
        mlxr_sum_in_memory(w, l, x, out, n);
        return;
    }
    if (w->tid || l->lost >= 0) return;  // after a loss, the step only comes to its end
    if (!l->connected || kind == MLXR_GATHER) {
        l->call(kind, x, out, rows, columns);
    } else if (kind == MLXR_ALL_SUM) {
        mlxr_sum_by_sockets(l, x, out, n);
    } else {
        mlxr_swap swap = {.socket = kind == MLXR_SEND ? l->next : l->previous};
        if (kind == MLXR_SEND) swap.out = (const char *)x, swap.to_send = n * sizeof *x;
        else swap.in = (char *)out, swap.to_receive = n * sizeof *out;
        mlxr_swap_all(l, &swap, 1);
    }
}
