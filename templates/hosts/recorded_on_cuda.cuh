// What stands around recorded launches (see runtime/hosts/cuda/recorded_batch.py), which read a batch in one array, `batch`.
// `numbers` has its layout.
//
// mlxr_place copies a batch there. No other kernel that touches it runs at the same time.
//   tokens, moving, steady   what is copied, u32
//   ahead, num_ahead         what moves in each of the steps, if that is not one more each time, and how many numbers
//   step                     [1] u32: the number of the step, of which the remainder by MOST_STEPS counts
//   numbers                  [16] u32
//   token, turn              [8] u32: what comes before the step
//   batch                    written in place
//   token_out, next          the token, and what moves in the step after if each is one more
// mlxr_renew copies what is new in a batch whose steps go on.
//   given                    [8] u32 of the machine: the number of the step, 0, how many numbers move in each of the steps (as
//                            `num_ahead`), 0, and whether what is steady is new; then these as they lie in the batch
//   numbers
//   batch                    written in place
// mlxr_choose takes the likeliest token of each row of logits, and prepares the step after: the last launch of a step. Its grid is
// rows by parts of a row.
//   logits, numbers, batch
//   chosen                   [2, MOST_STEPS, rows] u32 of the machine: tokens, then the bits of each row's greatest logit, of
//                            which NaN is the greatest
// mlxr_fetch copies what the next step has there.
//   batch, numbers, token
//   tokens, moving, token_out
// mlxr_fetch_logits copies logits.
//   logits, numbers, token
//   out, token_out
// mlxr_clear makes memory zeros that a product wants to be.
//   out, words
typedef unsigned int mlxr_u32;
enum { NUM_TOKENS, NUM_MOVING, NUM_STEADY, MOVING_AT, STEADY_AT, AHEAD_AT, STATE_AT, WIDTH, MOST_STEPS, NUM_LOGITS, WORDS_AT };
enum { STEP, ENDED, NUM_AHEAD, SINCE, IS_NEW };

extern "C" __global__ void __launch_bounds__(256) mlxr_place(
    const mlxr_u32* tokens, const mlxr_u32* moving, const mlxr_u32* steady, const mlxr_u32* ahead, const mlxr_u32* num_ahead,
    const mlxr_u32* step, const mlxr_u32* numbers, const mlxr_u32* token, const mlxr_u32* turn, const mlxr_u32* batch, mlxr_u32* token_out,
    mlxr_u32* next) {
  mlxr_u32* const place = const_cast<mlxr_u32*>(batch);
  const mlxr_u32 first = blockIdx.x * 256u + threadIdx.x, stride = gridDim.x * 256u;
  for (mlxr_u32 i = first; i < numbers[NUM_TOKENS]; i += stride) {
    place[i] = tokens[i];
  }
  for (mlxr_u32 i = first; i < numbers[NUM_MOVING]; i += stride) {
    place[numbers[MOVING_AT] + i] = moving[i];
    next[i] = moving[i] + 1;
  }
  for (mlxr_u32 i = first; i < numbers[NUM_STEADY]; i += stride) {
    place[numbers[STEADY_AT] + i] = steady[i];
  }
  for (mlxr_u32 i = first; i < num_ahead[0]; i += stride) {
    place[numbers[AHEAD_AT] + i] = ahead[i];
  }
  if (first < 8) {
    place[numbers[STATE_AT] + first] = first == NUM_AHEAD ? num_ahead[0] : first == STEP ? step[0] : 0;
    token_out[first] = token[first];
  }
}

extern "C" __global__ void __launch_bounds__(256) mlxr_renew(
    const mlxr_u32* given, const mlxr_u32* numbers, mlxr_u32* batch) {
  const mlxr_u32 first = blockIdx.x * 256u + threadIdx.x, stride = gridDim.x * 256u;
  const mlxr_u32 moving = numbers[MOVING_AT], steady = numbers[STEADY_AT] - moving, ahead = numbers[AHEAD_AT] - moving;
  const mlxr_u32* const from = given + 8;
  mlxr_u32* const to = batch + moving;
  for (mlxr_u32 i = first; i < numbers[NUM_MOVING]; i += stride) {
    to[i] = from[i];
  }
  if (given[IS_NEW]) {
    for (mlxr_u32 i = first; i < numbers[NUM_STEADY]; i += stride) {
      to[steady + i] = from[steady + i];
    }
  }
  for (mlxr_u32 i = first; i < given[NUM_AHEAD]; i += stride) {
    to[ahead + i] = from[ahead + i];
  }
  if (first < 8) {
    batch[numbers[STATE_AT] + first] = given[first];
  }
}

// A logit's order and its index in one word of 64 bits: of equal logits the first one is the greatest.
__device__ __forceinline__ unsigned long long mlxr_word_of(float x, mlxr_u32 index) {
  const mlxr_u32 bits = __float_as_uint(x + 0.0f);  // one zero
  const mlxr_u32 order = x != x ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (unsigned long long)order << 32 | ~index;
}

extern "C" __global__ void __launch_bounds__(1024) mlxr_choose(
    const float* logits, const mlxr_u32* numbers, mlxr_u32* batch, mlxr_u32* chosen) {
  __shared__ unsigned long long greatest_of[32];
  __shared__ bool is_last;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // the launch before may still run, see launch_graph.py
#endif
  const mlxr_u32 width = numbers[WIDTH], rows = gridDim.x, row = blockIdx.x, thread = threadIdx.x, lane = thread % 32;
  const mlxr_u32 first = blockIdx.y * 1024u + thread, stride = gridDim.y * 1024u;
  mlxr_u32* const state = batch + numbers[STATE_AT];
  unsigned long long* const words = reinterpret_cast<unsigned long long*>(batch + numbers[WORDS_AT]);
  const float* const own = logits + (unsigned long long)row * width;
  unsigned long long greatest = 0;
  const auto merge = [&](unsigned long long other) { greatest = other > greatest ? other : greatest; };
  const mlxr_u32 quads = width % 4 == 0 ? width / 4 : 0;  // rows begin at multiples of 16 bytes then
#pragma unroll 4
  for (mlxr_u32 i = first; i < quads; i += stride) {
    const float4 x = reinterpret_cast<const float4*>(own)[i];
    merge(mlxr_word_of(x.x, 4 * i));
    merge(mlxr_word_of(x.y, 4 * i + 1));
    merge(mlxr_word_of(x.z, 4 * i + 2));
    merge(mlxr_word_of(x.w, 4 * i + 3));
  }
  for (mlxr_u32 i = 4 * quads + first; i < width; i += stride) {
    merge(mlxr_word_of(own[i], i));
  }
  for (mlxr_u32 distance = 16; distance; distance /= 2) {
    merge(__shfl_xor_sync(0xffffffffu, greatest, distance));
  }
  if (lane == 0) {
    greatest_of[thread / 32] = greatest;
  }
  __syncthreads();
  if (thread < 32) {
    greatest = greatest_of[lane];
    for (mlxr_u32 distance = 16; distance; distance /= 2) {
      merge(__shfl_xor_sync(0xffffffffu, greatest, distance));
    }
    if (lane == 0) {
      atomicMax(&words[row], greatest);
      __threadfence();
      is_last = atomicAdd(&state[ENDED], 1u) == rows * gridDim.y - 1;
    }
  }
  __syncthreads();
  if (is_last) {
    __threadfence();
    const mlxr_u32 moving = numbers[MOVING_AT], num_moving = numbers[NUM_MOVING], since = state[SINCE] + 1;
    const mlxr_u32 most = numbers[MOST_STEPS], at = state[STEP] % most * rows;
    for (mlxr_u32 i = thread; i < rows; i += 1024) {
      const unsigned long long word = atomicExch(&words[i], 0ull);
      const mlxr_u32 index = ~(mlxr_u32)word, order = word >> 32;
      batch[i] = index;
      chosen[at + i] = index;
      chosen[at + most * rows + i] = order == 0xffffffffu ? 0x7fc00000u : order & 0x80000000u ? order ^ 0x80000000u : ~order;
    }
    const bool is_ahead = (since + 1) * num_moving <= state[NUM_AHEAD];
    for (mlxr_u32 i = thread; i < num_moving; i += 1024) {
      batch[moving + i] = is_ahead ? batch[numbers[AHEAD_AT] + since * num_moving + i] : batch[moving + i] + 1;
    }
    __syncthreads();  // all have read which step it is
    if (thread == 0) {
      state[STEP] += 1;
      state[SINCE] = since;
      state[ENDED] = 0;
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) mlxr_fetch(
    const mlxr_u32* batch, const mlxr_u32* numbers, const mlxr_u32* token, mlxr_u32* tokens, mlxr_u32* moving,
    mlxr_u32* token_out) {
  const mlxr_u32 first = blockIdx.x * 256u + threadIdx.x, stride = gridDim.x * 256u;
  for (mlxr_u32 i = first; i < numbers[NUM_TOKENS]; i += stride) {
    tokens[i] = batch[i];
  }
  for (mlxr_u32 i = first; i < numbers[NUM_MOVING]; i += stride) {
    moving[i] = batch[numbers[MOVING_AT] + i];
  }
  if (first < 8) {
    token_out[first] = token[first];
  }
}

extern "C" __global__ void __launch_bounds__(256) mlxr_fetch_logits(
    const float* logits, const mlxr_u32* numbers, const mlxr_u32* token, float* out, mlxr_u32* token_out) {
  const mlxr_u32 first = blockIdx.x * 256u + threadIdx.x;
  for (mlxr_u32 i = first; i < numbers[NUM_LOGITS]; i += gridDim.x * 256u) {
    out[i] = logits[i];
  }
  if (first < 8) {
    token_out[first] = token[first];
  }
}

extern "C" __global__ void __launch_bounds__(256) mlxr_clear(mlxr_u32* out, unsigned long long words) {
  for (unsigned long long i = blockIdx.x * 256u + threadIdx.x; i < words; i += gridDim.x * 256u) {
    out[i] = 0;
  }
}
