// route_60ef1dc5
// small spec of a test
//
// The 3 experts of each token of 40, best first, and their weights: router softmax_topk, weights of sum 1.
// A simdgroup serves a token: a lane holds 2 logits, and each round finds the largest of those that are left. Of equal
// ones the lowest index wins. NaN counts as minus infinity, so that the experts are always valid and distinct.
// Grid: tokens threadgroups of one simdgroup.
//   x          [tokens, 40] f32: the router's logits
//   experts    [tokens, 3] i32
//   weights    [tokens, 3] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void route_60ef1dc5(
  const device float* x [[buffer(0)]],
  device int32_t* experts [[buffer(1)]],
  device float* weights [[buffer(2)]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint t = threadgroup_position_in_grid.x;
  const device float* logits = x + (ulong)t * 40u;
  float logit[2];
  uint taken = 0;  // bit i: expert lane + 32 * i is chosen, or none
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const uint expert = lane + 32u * i;
    logit[i] = -INFINITY;
    if (expert < 40u) {
      const float value = logits[expert];
      logit[i] = metal::isnan(value) ? -INFINITY : value;
    } else {
      taken |= 1u << i;
    }
  }

  // Lane r % 32 keeps the logit of the expert of rank r.
  float kept[1];
#pragma unroll
  for (uint j = 0; j < 1u; j++) {
    kept[j] = -INFINITY;
  }
  // Words that compare as the numbers do; those of taken experts are 0.
  uint left[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const uint bits = as_type<uint>(logit[i] == 0.0f ? 0.0f : logit[i]);
    left[i] = taken >> i & 1u ? 0u : bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  for (uint rank = 0; rank < 3u; rank++) {
    uint best = left[0];
#pragma unroll
    for (uint i = 1; i < 2u; i++) {
      best = max(best, left[i]);
    }
    best = simd_max(best);
    uint expert = 0xffffffffu;
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      expert = min(expert, left[i] == best ? lane + 32u * i : 0xffffffffu);
    }
    const uint winner = simd_min(expert);
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      left[i] = winner == lane + 32u * i ? 0u : left[i];
    }
    if (lane == 0) {
      experts[(ulong)t * 3u + rank] = (int)winner;
    }
    const float value = as_type<float>(best >> 31 ? best & 0x7fffffffu : ~best);
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      kept[j] = rank == lane + 32u * j ? value : kept[j];
    }
  }

  float largest_logit = logit[0];
#pragma unroll
  for (uint i = 1; i < 2u; i++) {
    largest_logit = max(largest_logit, logit[i]);
  }
  largest_logit = simd_max(largest_logit);
  float all = 0.0f;
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    all += metal::precise::exp(logit[i] - largest_logit);
  }
  all = simd_sum(all);
  float sum = 0.0f;
#pragma unroll
  for (uint j = 0; j < 1u; j++) {
    kept[j] = metal::precise::exp(kept[j] - largest_logit) / all;
    sum += kept[j];
  }
  sum = simd_sum(sum);
#pragma unroll
  for (uint j = 0; j < 1u; j++) {
    const uint rank = lane + 32u * j;
    if (rank < 3u) {
      weights[(ulong)t * 3u + rank] = kept[j] / sum * 2.5f;
    }
  }
}
