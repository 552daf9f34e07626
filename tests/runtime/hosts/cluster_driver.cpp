// Runs mlxr_draw (templates/hosts/draw_on_cuda.cuh) on a CPU: the threads of a cluster are fibers, which take turns and wait for each
// other where the kernel says so. Between two waits they run one after the other, so races are not seen.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MLXR_EMULATED
#define MLXR_DRAW_THREADS 64
#define MLXR_LISTED 256u  // few, so that short rows have more that are equal
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)

enum { THREADS = MLXR_DRAW_THREADS, MOST_GROUPS = 8, STACK = 1 << 16 };
struct float4 {
  float x, y, z, w;
};
struct place {
  unsigned x;
};
struct barrier {
  unsigned size, count, turn;
};
struct fiber {
  ucontext_t begin;
  jmp_buf at;  // to swap contexts takes two calls of the system
  bool has_begun, is_done;
};
static place blockIdx, threadIdx, gridDim;
static fiber fibers[MOST_GROUPS * THREADS];
static jmp_buf scheduler;
static unsigned current, cluster_size;
static barrier of_cluster, of_group[MOST_GROUPS], of_warp[MOST_GROUPS * THREADS / 32];
static uint64_t exchanged[MOST_GROUPS * THREADS];

static void give_way() {
  if (!_setjmp(fibers[current].at)) {
    _longjmp(scheduler, 1);
  }
}
__attribute__((noinline)) static void run_on() {
  if (!_setjmp(scheduler)) {
    if (fibers[current].has_begun) {
      _longjmp(fibers[current].at, 1);
    }
    fibers[current].has_begun = true;
    setcontext(&fibers[current].begin);
  }
}
static void await_all(barrier& those) {
  const unsigned turn = those.turn;
  if (++those.count == those.size) {
    those.count = 0;
    ++those.turn;
  }
  while (those.turn == turn) {
    give_way();
  }
}
static void __syncthreads() { await_all(of_group[current / THREADS]); }
static void __syncwarp() { await_all(of_warp[current / 32]); }
template <class T>
static T of_lane(T value, unsigned lane) {
  exchanged[current] = value;
  __syncwarp();
  const T found = lane < 32 ? (T)exchanged[current / 32 * 32 + lane] : value;
  __syncwarp();
  return found;
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, unsigned distance) {
  return of_lane(value, current % 32 ^ distance);
}
template <class T>
static T __shfl_up_sync(unsigned, T value, unsigned distance) {
  return of_lane(value, current % 32 - distance);
}
template <class T>
static T __shfl_sync(unsigned, T value, unsigned lane) {
  return of_lane(value, lane);
}
template <class Join>
static unsigned of_lanes(unsigned value, Join join) {
  exchanged[current] = value;
  __syncwarp();
  unsigned found = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    found = join(found, (unsigned)exchanged[current / 32 * 32 + lane], lane);
  }
  __syncwarp();
  return found;
}
static unsigned __ballot_sync(unsigned, bool is_so) {
  return of_lanes(is_so, [](unsigned found, unsigned bit, unsigned lane) { return found | bit << lane; });
}
static unsigned __reduce_add_sync(unsigned, unsigned value) {
  return of_lanes(value, [](unsigned found, unsigned other, unsigned) { return found + other; });
}
static int __ffs(unsigned bits) { return __builtin_ffs(bits); }
static unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static unsigned atomicAdd(unsigned* place, unsigned number) {
  *place += number;
  return *place - number;
}
static void __threadfence() {}
static void mlxr_await_launch_before() {}
static void mlxr_cluster_sync() { await_all(of_cluster); }
static unsigned mlxr_cluster_size() { return cluster_size; }
static unsigned long long mlxr_of_rank(const unsigned long long* place, unsigned rank);
#define MLXR_DRAW_SHARED(name) mlxr_draw_shared& name = shared_of_group[current / THREADS]
struct mlxr_draw_shared;
extern mlxr_draw_shared* const shared_of_group;

#include "draw_on_cuda.cuh"

static mlxr_draw_shared all_shared[MOST_GROUPS];
mlxr_draw_shared* const shared_of_group = all_shared;
static unsigned long long mlxr_of_rank(const unsigned long long* place, unsigned rank) {
  const size_t at = (const char*)place - (const char*)&all_shared[current / THREADS];
  return *(const unsigned long long*)((const char*)&all_shared[rank] + at);
}

static float* logits;
static unsigned *numbers, *batch, *chosen, *asked;
static void run() {
  mlxr_draw(logits, numbers, batch, chosen, asked);
  fibers[current].is_done = true;
  give_way();
}

extern "C" void draw(float* logits_, unsigned* numbers_, unsigned* batch_, unsigned* chosen_, unsigned* asked_, unsigned rows, unsigned size) {
  logits = logits_, numbers = numbers_, batch = batch_, chosen = chosen_, asked = asked_;
  cluster_size = size, gridDim.x = rows * size;
  const unsigned count = size * THREADS;
  char* const stacks = (char*)malloc((size_t)count * STACK);
  for (unsigned row = 0; row < rows; ++row) {
    memset(all_shared, 0xcd, sizeof all_shared);
    of_cluster = {count, 0, 0};
    for (unsigned i = 0; i < count; ++i) {
      of_group[i / THREADS] = {THREADS, 0, 0}, of_warp[i / 32] = {32, 0, 0}, fibers[i].has_begun = fibers[i].is_done = false;
      getcontext(&fibers[i].begin);
      fibers[i].begin.uc_stack.ss_sp = stacks + (size_t)i * STACK;
      fibers[i].begin.uc_stack.ss_size = STACK;
      makecontext(&fibers[i].begin, run, 0);
    }
    for (unsigned left = count; left;) {
      left = 0;
      for (current = 0; current < count; ++current) {
        if (!fibers[current].is_done) {
          ++left;
          blockIdx.x = row * size + current / THREADS, threadIdx.x = current % THREADS;
          run_on();
        }
      }
    }
  }
  free(stacks);
}
