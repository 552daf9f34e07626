// mlxr_draw chooses a token of each row of logits at random, and prepares the step after: the last launch of a recorded step, in place of
// mlxr_choose (recorded_on_cuda.cuh), if a row asks for it. What a row asks for:
//
//   1. weights exp((x - greatest) / temperature); those below min_p are 0
//   2. the top_k greatest weights, of equal ones the first; 0: all
//   3. of these the fewest, the greatest first, that have top_p of their sum; 1: all
//   4. the token where `uniform`, a part of the sum of these that is below 1, falls
//
// Weights are added as whole numbers, so a token depends neither on the order of additions nor on other rows. A cluster of
// threadgroups has a row; each of them has a range of it, in segments of 128. Where 2. or 3. are asked for, weights take the place of
// the row's logits.
//   logits, numbers, batch, chosen   as mlxr_choose has them
//   asked                            [MOST_STEPS, rows, 8] u32 of the machine: uniform, temperature, min_p, top_p (f32), top_k, and whether
//                                    the row takes its greatest logit
enum { WIDTH = 7, MOST_STEPS = 8, NUM_MOVING = 1, MOVING_AT = 3, AHEAD_AT = 5, STATE_AT = 6 };
enum { STEP, ENDED, NUM_AHEAD, SINCE };
enum { UNIFORM, TEMPERATURE, MIN_P, TOP_P, TOP_K, IS_GREEDY, NUM_ASKED = 8 };
typedef unsigned int mlxr_u32;
typedef unsigned long long mlxr_u64;
#ifndef MLXR_DRAW_THREADS
#define MLXR_DRAW_THREADS 512
#endif
#define MLXR_SEGMENT 128u
#define MLXR_MOST_SEGMENTS 2560u
#define MLXR_SHARES 3       // thresholds of one look at the weights
#define MLXR_AT_ONCE 2      // segments that a warp asks for together
#ifndef MLXR_LISTED
#define MLXR_LISTED 1024u  // weights that are sorted, a power of 2
#endif
#define MLXR_COUNT_BITS 21  // of a row's weights
#define MLXR_WARPS (MLXR_DRAW_THREADS / 32)

enum { LOOK, SUM, CHANGE };

struct mlxr_draw_shared {
  mlxr_u64 sums[MLXR_MOST_SEGMENTS], of_warp[MLXR_WARPS][1 + MLXR_SHARES], given[2][1 + MLXR_SHARES], all[1 + MLXR_SHARES];
  mlxr_u64 list[MLXR_LISTED];
  mlxr_u32 found, listed, asked[NUM_ASKED];
  bool is_last;
};

#ifndef MLXR_EMULATED
#define MLXR_DRAW_SHARED(name) __shared__ mlxr_draw_shared name
__device__ __forceinline__ mlxr_u32 mlxr_cluster_size() {
  mlxr_u32 size = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  return size;
}
__device__ __forceinline__ void mlxr_cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ mlxr_u64 mlxr_of_rank(const mlxr_u64* place, mlxr_u32 rank) {
#if __CUDA_ARCH__ >= 900
  mlxr_u32 at;
  mlxr_u64 value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((mlxr_u32)__cvta_generic_to_shared(place)), "r"(rank));
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(at) : "memory");
  return value;
#else
  return *place;
#endif
}
__device__ __forceinline__ void mlxr_await_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // it may still run, see launch_graph.py
#endif
}
#endif

// The sum of a warp's numbers of up to 63 bits; cards before Ampere have no such sums.
__device__ __forceinline__ mlxr_u64 mlxr_warp_sum(mlxr_u64 value) {
  const mlxr_u32 third = (1u << 22) - 1;
  const mlxr_u64 low = __reduce_add_sync(0xffffffffu, (mlxr_u32)value & third);
  const mlxr_u64 middle = __reduce_add_sync(0xffffffffu, (mlxr_u32)(value >> 22) & third);
  return low + (middle << 22) + ((mlxr_u64)__reduce_add_sync(0xffffffffu, (mlxr_u32)(value >> 44)) << 44);
}
__device__ __forceinline__ mlxr_u64 mlxr_warp_max(mlxr_u64 value) {
  for (mlxr_u32 distance = 16; distance; distance /= 2) {
    const mlxr_u64 other = __shfl_xor_sync(0xffffffffu, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// A weight of at most 1 as a whole number; a row of half a million still fits.
__device__ __forceinline__ mlxr_u64 mlxr_whole(float weight) { return (mlxr_u64)(weight * 17592186044416.0f); }  // 2^44

// A threadgroup's range of a row.
struct mlxr_range {
  mlxr_draw_shared& shared;
  float* row;
  mlxr_u32 begin, end, segments, thread, lane, warp, rank, size, turn, is_changed;

  // Calls `work` with the index of a thread's four numbers and themselves, in each segment in turn. SUM puts the sum of what it gives
  // for a segment into `shared.sums`, and CHANGE also writes the numbers back.
  template <int what, class Work>
  __device__ __forceinline__ void each(Work work) {
    const bool is_aligned = (mlxr_u64)row % 16 == 0;
#pragma unroll 1
    for (mlxr_u32 begin_of = warp; begin_of < segments; begin_of += MLXR_AT_ONCE * MLXR_WARPS) {
      float x[MLXR_AT_ONCE][4];
#pragma unroll
      for (mlxr_u32 at = 0; at < MLXR_AT_ONCE; ++at) {
        const mlxr_u32 segment = begin_of + at * MLXR_WARPS, first = begin + segment * MLXR_SEGMENT + 4 * lane;
        if (is_aligned && segment < segments && first + 4 <= end) {
          const float4 all = *reinterpret_cast<const float4*>(row + first);
          x[at][0] = all.x, x[at][1] = all.y, x[at][2] = all.z, x[at][3] = all.w;
        } else {
          for (mlxr_u32 i = 0; i < 4; ++i) {
            x[at][i] = segment < segments && first + i < end ? row[first + i] : 0.0f;
          }
        }
      }
#pragma unroll
      for (mlxr_u32 at = 0; at < MLXR_AT_ONCE; ++at) {
        const mlxr_u32 segment = begin_of + at * MLXR_WARPS, first = begin + segment * MLXR_SEGMENT + 4 * lane;
        if (segment >= segments) {
          break;
        }
        const mlxr_u64 own = work(first, x[at]);
        if (what == LOOK) {
          continue;
        }
        if (what == CHANGE && is_changed) {
          if (is_aligned && first + 4 <= end) {
            *reinterpret_cast<float4*>(row + first) = float4{x[at][0], x[at][1], x[at][2], x[at][3]};
          } else {
            for (mlxr_u32 i = 0; i < 4; ++i) {
              if (first + i < end) {
                row[first + i] = x[at][i];
              }
            }
          }
        }
        const mlxr_u64 sum = mlxr_warp_sum(own);
        if (lane == 0) {
          shared.sums[segment] = sum;
        }
      }
    }
    __syncthreads();
  }

  // Adds values of all threads of the cluster, or takes the greatest; each gets the result.
  template <bool is_sum, int count>
  __device__ __forceinline__ void join(mlxr_u64 (&values)[count]) {
    const auto of_warp = [](mlxr_u64 value) { return is_sum ? mlxr_warp_sum(value) : mlxr_warp_max(value); };
    for (int n = 0; n < count; ++n) {
      values[n] = of_warp(values[n]);
      if (lane == 0) {
        shared.of_warp[warp][n] = values[n];
      }
    }
    __syncthreads();
    if (warp == 0) {
      for (int n = 0; n < count; ++n) {
        const mlxr_u64 value = of_warp(lane < MLXR_WARPS ? shared.of_warp[lane][n] : 0);
        if (lane == 0) {
          shared.given[turn][n] = value;
        }
      }
    }
    mlxr_cluster_sync();
    if (warp == 0) {
      for (int n = 0; n < count; ++n) {
        const mlxr_u64 value = of_warp(lane < size ? mlxr_of_rank(&shared.given[turn][n], lane) : 0);
        if (lane == 0) {
          shared.all[n] = value;
        }
      }
    }
    __syncthreads();
    for (int n = 0; n < count; ++n) {
      values[n] = shared.all[n];
    }
    turn ^= 1;  // the others read this one until they come to the next
  }

  // The index at which the sum of what `value` says of the row's numbers exceeds a target, which depends on the sum of all. The sums
  // of segments are in `shared.sums`. Only threads of the range in which it lies have it, the others have ~0.
  template <class Target, class Value>
  __device__ __forceinline__ mlxr_u32 find(Target target_of, Value value) {
    mlxr_u64 own = 0;
    for (mlxr_u32 i = thread; i < segments; i += MLXR_DRAW_THREADS) {
      own += shared.sums[i];
    }
    own = mlxr_warp_sum(own);
    if (lane == 0) {
      shared.of_warp[warp][0] = own;
    }
    if (thread == 0) {
      shared.found = 0xffffffffu;
    }
    __syncthreads();
    if (warp == 0) {
      const mlxr_u64 sum = mlxr_warp_sum(lane < MLXR_WARPS ? shared.of_warp[lane][0] : 0);
      if (lane == 0) {
        shared.given[turn][0] = sum;
      }
    }
    mlxr_cluster_sync();
    if (warp == 0) {
      const mlxr_u64 of_rank = lane < size ? mlxr_of_rank(&shared.given[turn][0], lane) : 0;
      const mlxr_u64 target = target_of(mlxr_warp_sum(of_rank)), before = mlxr_warp_sum(lane < rank ? of_rank : 0);
      const mlxr_u64 here = __shfl_sync(0xffffffffu, of_rank, rank);
      if (before <= target && target < before + here) {
        mlxr_u64 left = target - before;
        for (mlxr_u32 at = 0; at < segments; at += 32) {  // 32 segments, one for each lane
          if (advance(at + lane < segments ? shared.sums[at + lane] : 0, left)) {
            const mlxr_u32 first = begin + (at + shared.found) * MLXR_SEGMENT + 4 * lane;
            mlxr_u64 of_number[4], of_lane = 0;
            for (mlxr_u32 i = 0; i < 4; ++i) {
              of_number[i] = first + i < end ? value(first + i, row[first + i]) : 0;
              of_lane += of_number[i];
            }
            __syncwarp();
            advance(of_lane, left);
            const mlxr_u32 where = shared.found;
            __syncwarp();
            if (lane == where) {
              mlxr_u32 i = 0;
              for (; i < 3 && left >= of_number[i]; ++i) {
                left -= of_number[i];
              }
              shared.found = first + i;
            }
            break;
          }
        }
      }
    }
    __syncthreads();
    turn ^= 1;
    return shared.found;
  }

  // Finds the lane in whose value a target lies, of values one after the other: `shared.found`, and what is left of the
  // target there. Whether there is one; else the target has lost them all.
  __device__ __forceinline__ bool advance(mlxr_u64 value, mlxr_u64& left) {
    mlxr_u64 until = value;
    for (mlxr_u32 distance = 1; distance < 32; distance *= 2) {
      const mlxr_u64 other = __shfl_up_sync(0xffffffffu, until, distance);
      until += lane >= distance ? other : 0;
    }
    const mlxr_u32 beyond = __ballot_sync(0xffffffffu, until > left);
    const mlxr_u32 where = beyond ? __ffs(beyond) - 1 : 31;
    const mlxr_u64 passed = __shfl_sync(0xffffffffu, beyond ? until - value : until, where);
    left -= passed;
    if (lane == 0) {
      shared.found = where;
    }
    __syncwarp();
    return beyond != 0;
  }

  // Keeps the greatest weights, so many, or as few as reach a part of the sum; of equal ones the first. Others become 0.
  __device__ __forceinline__ void keep(mlxr_u64 target, float part_of_sum, bool is_mass) {
    // At least `low` (bits of weights, which are in order) are enough of them, at least `high` too few. Smaller weights than the first
    // `low`, 2^-44, are 0 as whole numbers.
    mlxr_u32 low = 0x29800000u, high = 0x3f800001u;
    mlxr_u64 many = 0, few = 0, sum = 0;  // how many are at least low, at least high, and the sum of these
    for (bool is_first = true; is_first || (high - low > 1 && many - few > MLXR_LISTED); is_first = false) {
      mlxr_u32 bounds[MLXR_SHARES];
      for (int n = 0; n < MLXR_SHARES; ++n) {
        const mlxr_u32 part = (mlxr_u32)((mlxr_u64)(high - low - 1) * (n + 1) / (MLXR_SHARES + 1));
        bounds[n] = is_first && n == 0 ? low : low + 1 + part;
      }
      mlxr_u64 found[1 + MLXR_SHARES] = {};  // how many are at least each bound, packed, and their sums
      each<LOOK>([&](mlxr_u32, float* x) {
        for (mlxr_u32 i = 0; i < 4; ++i) {
          const mlxr_u32 bits = __float_as_uint(x[i]);
          const mlxr_u64 whole = mlxr_whole(x[i]);
          for (int n = 0; n < MLXR_SHARES; ++n) {
            found[0] += (mlxr_u64)(bits >= bounds[n]) << MLXR_COUNT_BITS * n;
            found[1 + n] += bits >= bounds[n] ? whole : 0;
          }
        }
        return (mlxr_u64)0;
      });
      join<true>(found);
      if (is_first && is_mass) {
        target = (mlxr_u64)ceil((double)part_of_sum * (double)found[1]);
        target = target ? target : 1;
      }
      for (int n = 0; n < MLXR_SHARES; ++n) {
        const mlxr_u64 count = found[0] >> MLXR_COUNT_BITS * n & ((1u << MLXR_COUNT_BITS) - 1), mass = found[1 + n];
        const bool is_enough = (is_mass ? mass : count) >= target;
        if (is_first && n == 0 && !is_enough) {
          return;  // all together are not more
        }
        if (is_enough && (bounds[n] > low || (is_first && n == 0))) {
          low = bounds[n], many = count;
        } else if (!is_enough && bounds[n] < high) {
          high = bounds[n], few = count, sum = mass;
        }
      }
    }
    mlxr_u32 least = low, above = high, until;  // equal ones are kept that come before `until`
    if (many - few <= MLXR_LISTED) {
      const mlxr_u64 word = last_of(low, high, is_mass ? target - sum : target - few, is_mass);
      least = word >> 32, above = least + 1, until = ~(mlxr_u32)word + 1;
    } else {  // all from low to high are equal
      const mlxr_u64 equal = many - few, each_one = mlxr_whole(__uint_as_float(low));
      const mlxr_u64 room = is_mass ? each_one ? (target - sum + each_one - 1) / each_one : equal : target - few;
      const auto is_equal = [=](mlxr_u32, float x) -> mlxr_u64 { return __float_as_uint(x) == low; };
      each<SUM>([&](mlxr_u32 first, float* x) {
        mlxr_u64 number = 0;
        for (mlxr_u32 i = 0; i < 4; ++i) {
          number += is_equal(first, x[i]);
        }
        return number;
      });
      mlxr_u64 cut[1] = {find([=](mlxr_u64) { return room; }, is_equal)};
      cut[0] = cut[0] == 0xffffffffu ? 0 : cut[0];  // others' ranges
      join<false>(cut);
      until = room < equal ? (mlxr_u32)cut[0] : 0xffffffffu;
    }
    each<CHANGE>([&](mlxr_u32 first, float* x) {
      mlxr_u64 kept = 0;
      for (mlxr_u32 i = 0; i < 4; ++i) {
        const mlxr_u32 bits = __float_as_uint(x[i]);
        x[i] = bits >= above || (bits >= least && first + i < until) ? x[i] : 0.0f;
        kept += mlxr_whole(x[i]);
      }
      return kept;
    });
  }

  // Of the weights from low to high, which all have room in the list, the greatest first and of equal ones the first: the one with
  // which a target is reached, as its bits and the complement of its index.
  __device__ __forceinline__ mlxr_u64 last_of(mlxr_u32 low, mlxr_u32 high, mlxr_u64 target, bool is_mass) {
    if (thread == 0) {
      shared.listed = 0;
    }
    __syncthreads();
    each<LOOK>([&](mlxr_u32 first, float* x) {
      for (mlxr_u32 i = 0; i < 4; ++i) {
        const mlxr_u32 bits = __float_as_uint(x[i]);
        if (bits >= low && bits < high) {
          shared.list[atomicAdd(&shared.listed, 1u)] = (mlxr_u64)bits << 32 | (mlxr_u32) ~(first + i);
        }
      }
      return (mlxr_u64)0;
    });
    if (thread == 0) {
      shared.given[turn][0] = shared.listed;
    }
    mlxr_cluster_sync();
    if (rank == 0) {
      mlxr_u32 count = shared.listed;
      for (mlxr_u32 other = 1; other < size; ++other) {
        const mlxr_u32 own = (mlxr_u32)mlxr_of_rank(&shared.given[turn][0], other);
        for (mlxr_u32 i = thread; i < own; i += MLXR_DRAW_THREADS) {
          shared.list[count + i] = mlxr_of_rank(&shared.list[i], other);
        }
        count += own;
      }
      mlxr_u32 width = 32;
      for (; width < count; width *= 2) {
      }
      for (mlxr_u32 i = count + thread; i < width; i += MLXR_DRAW_THREADS) {
        shared.list[i] = 0;
      }
      __syncthreads();
#pragma unroll 1
      for (mlxr_u32 sorted = 2; sorted <= width; sorted *= 2) {
#pragma unroll 1
        for (mlxr_u32 distance = sorted / 2; distance; distance /= 2) {
          for (mlxr_u32 i = thread; i < width / 2; i += MLXR_DRAW_THREADS) {
            const mlxr_u32 a = i / distance * 2 * distance + i % distance, b = a + distance;
            const mlxr_u64 x = shared.list[a], y = shared.list[b];
            if ((x < y) == !(a & sorted)) {
              shared.list[a] = y, shared.list[b] = x;
            }
          }
          __syncthreads();
        }
      }
      if (warp == 0) {
        mlxr_u64 left = target - 1;
        mlxr_u32 at = 0;
        for (; at < width; at += 32) {
          const mlxr_u64 word = shared.list[at + lane];
          if (advance(is_mass ? mlxr_whole(__uint_as_float((mlxr_u32)(word >> 32))) : 1, left)) {
            break;
          }
        }
        if (lane == 0) {
          shared.given[turn][1] = shared.list[at + shared.found];
        }
      }
    }
    mlxr_cluster_sync();
    if (thread == 0) {
      shared.all[0] = mlxr_of_rank(&shared.given[turn][1], 0);
    }
    __syncthreads();
    turn ^= 1;
    return shared.all[0];
  }
};

extern "C" __global__ void __launch_bounds__(MLXR_DRAW_THREADS) mlxr_draw(
    float* logits, const mlxr_u32* numbers, mlxr_u32* batch, mlxr_u32* chosen, const mlxr_u32* asked) {
  MLXR_DRAW_SHARED(shared);
  mlxr_await_launch_before();
  const mlxr_u32 size = mlxr_cluster_size(), rows = gridDim.x / size, row = blockIdx.x / size, rank = blockIdx.x % size;
  const mlxr_u32 thread = threadIdx.x, width = numbers[WIDTH], most = numbers[MOST_STEPS];
  mlxr_u32* const state = batch + numbers[STATE_AT];
  const mlxr_u32 step = state[STEP] % most;
  const mlxr_u32 own = thread < NUM_ASKED ? asked[(step * rows + row) * NUM_ASKED + thread] : 0;  // it comes from far away
  const mlxr_u32 each_range = ((width + size - 1) / size + MLXR_SEGMENT - 1) / MLXR_SEGMENT * MLXR_SEGMENT;
  const mlxr_u32 begin = rank * each_range < width ? rank * each_range : width;
  const mlxr_u32 end = begin + each_range < width ? begin + each_range : width;
  mlxr_range range = {shared,      logits + (mlxr_u64)row * width, begin, end, (end - begin + MLXR_SEGMENT - 1) / MLXR_SEGMENT, thread,
                      thread % 32, thread / 32,                    rank,  size, 0,   0};
  // A logit's order and its index in one word: of equal logits the first one is the greatest, NaN greater than any.
  mlxr_u64 greatest_word[1] = {0};
  range.each<LOOK>([&](mlxr_u32 first, float* x) {
    for (mlxr_u32 i = 0; i < 4 && first + i < end; ++i) {
      const mlxr_u32 bits = __float_as_uint(x[i] + 0.0f);  // one zero
      const mlxr_u32 order = x[i] != x[i] ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
      const mlxr_u64 word = (mlxr_u64)order << 32 | (mlxr_u32) ~(first + i);
      greatest_word[0] = word > greatest_word[0] ? word : greatest_word[0];
    }
    return (mlxr_u64)0;
  });
  if (thread < NUM_ASKED) {
    shared.asked[thread] = own;
  }
  range.join<false>(greatest_word);
  const float uniform = __uint_as_float(shared.asked[UNIFORM]), temperature = __uint_as_float(shared.asked[TEMPERATURE]);
  const float min_p = __uint_as_float(shared.asked[MIN_P]), top_p = __uint_as_float(shared.asked[TOP_P]);
  const mlxr_u32 top_k = shared.asked[TOP_K], is_greedy = shared.asked[IS_GREEDY];
  const mlxr_u32 order = greatest_word[0] >> 32;
  const mlxr_u32 greatest_bits = order & 0x80000000u ? order ^ 0x80000000u : ~order;
  const float greatest = __uint_as_float(greatest_bits);
  mlxr_u32 token = ~(mlxr_u32)greatest_word[0];
  bool is_here = rank == 0;  // whether this range says which token it is
  if (!is_greedy && (greatest_bits & 0x7f800000u) != 0x7f800000u) {
    const mlxr_u32 is_asked = (top_k != 0 && top_k < width) | (top_p < 1.0f) << 1;
    range.is_changed = is_asked;  // else logits stay
    const auto weight_of = [=](float x) {
      const float weight = expf((x - greatest) / temperature);
      return weight >= min_p ? weight : 0.0f;
    };
    const auto whole = [=](mlxr_u32, float x) { return mlxr_whole(is_asked ? x : weight_of(x)); };
    range.each<CHANGE>([&](mlxr_u32 first, float* x) {
      mlxr_u64 sum = 0;
      for (mlxr_u32 i = 0; i < 4; ++i) {
        x[i] = first + i < end ? weight_of(x[i]) : 0.0f;
        sum += mlxr_whole(x[i]);
      }
      return sum;
    });
#pragma unroll 1
    for (mlxr_u32 is_mass = 0; is_mass < 2; ++is_mass) {
      if (is_asked >> is_mass & 1) {
        range.keep(top_k, top_p, is_mass);
      }
    }
    token = range.find([=](mlxr_u64 total) { return (mlxr_u64)((double)uniform * (double)total); }, whole);
    is_here = token != 0xffffffffu;
  }
  if (thread == 0) {
    shared.is_last = false;
    if (is_here) {
      batch[row] = token;
      chosen[step * rows + row] = token;
      chosen[(most + step) * rows + row] = greatest_bits;
      __threadfence();
      shared.is_last = atomicAdd(&state[ENDED], 1u) == rows - 1;
    }
  }
  __syncthreads();
  if (shared.is_last) {
    __threadfence();
    const mlxr_u32 moving = numbers[MOVING_AT], num_moving = numbers[NUM_MOVING], since = state[SINCE] + 1;
    const bool is_ahead = (since + 1) * num_moving <= state[NUM_AHEAD];
    for (mlxr_u32 i = thread; i < num_moving; i += MLXR_DRAW_THREADS) {
      batch[moving + i] = is_ahead ? batch[numbers[AHEAD_AT] + since * num_moving + i] : batch[moving + i] + 1;
    }
    __syncthreads();  // all have read which step it is
    if (thread == 0) {
      state[STEP] += 1;
      state[SINCE] = since;
      state[ENDED] = 0;
    }
  }
  mlxr_cluster_sync();  // nobody reads what this range has given any more
}
