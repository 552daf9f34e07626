// route_order_d1e25b07
// small spec of a test
//
// The 4 experts of each token of 40 by a router's logits, as in the kernel of a choice, and their order.
// Grid: 40 threadgroups of 8 simdgroups, each for one expert.
//   logits     [tokens, 40] f32
//   dims       [8] u32: tokens, seqs, rows, tiles
//   experts    [tokens, 4] i32
//   weights    [tokens, 4] f32
//   order      [tokens * 4] i32: token * 4 + choice
//   tiles      [tiles, 3] i32: expert, the place of its first choice, and the place after its last; ceil(tokens/2)+40 tiles
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void route_order_d1e25b07(
  const device float* logits [[buffer(0)]],
  const device uint32_t* dims [[buffer(1)]],
  device int32_t* experts [[buffer(2)]],
  device float* weights [[buffer(3)]],
  device int32_t* order [[buffer(4)]],
  device int32_t* tiles [[buffer(5)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
  MLXR_THREADGROUP(int, chosen, 16);
  const uint tokens = dims[0];
  const bool stores = threadgroup_position_in_grid.x == 0;
  for (uint t = simdgroup; t < tokens; t += 8u) {
    const device float* of_token = logits + (ulong)t * 40u;
    float logit[2];
    uint taken = 0;  // bit i: expert lane + 32 * i is chosen, or none
  #pragma unroll
    for (uint i = 0; i < 2u; i++) {
      const uint expert = lane + 32u * i;
      logit[i] = -INFINITY;
      if (expert < 40u) {
        const float value = of_token[expert];
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
  for (uint rank = 0; rank < 4u; rank++) {
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
    const int number = (int)winner;
    if (lane == 0) {
      chosen[t * 4u + rank] = number;
      if (stores) {
        experts[t * 4u + rank] = number;
      }
    }
    const float value = as_type<float>(best >> 31 ? best & 0x7fffffffu : ~best);
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      kept[j] = rank == lane + 32u * j ? value : kept[j];
    }
  }
    if (stores) {
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
        if (rank < 4u) {
          weights[(ulong)t * 4u + rank] = kept[j] / sum * 2.5f;
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int own = (int)threadgroup_position_in_grid.x;
  const uint choices = dims[0] * 4u;
  // A thread looks at choices that follow each other, four at a time.
  const uint share = (choices + 1023u) / 1024u * 4u;
  const uint first = min(thread_index_in_threadgroup * share, choices), end = min(first + share, choices);
  uint lower = 0, mine = 0;
  for (uint at = first; at < end; at += 4u) {
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const int expert = at + i < end ? chosen[at + i] : 40;
      lower += expert < own ? 1u : 0u;
      mine += expert == own ? 1u : 0u;
    }
  }
  // Choices of lower experts, and of this one, in each simdgroup.
  MLXR_THREADGROUP(uint2, counts, 8);
  const uint2 of_simdgroup = uint2(simd_sum(lower), simd_sum(mine));
  if (lane == 0) {
    counts[simdgroup] = of_simdgroup;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = 0, of_expert = 0, place = simd_prefix_exclusive_sum(mine);
#pragma unroll
  for (uint s = 0; s < 8u; s++) {
    before += counts[s].x;
    of_expert += counts[s].y;
    place += s < simdgroup ? counts[s].y : 0u;
  }
  place += before;
  for (uint at = first; mine > 0 && at < end; at++) {
    if (chosen[at] == own) {
      order[place++] = (int)at;
    }
  }
  const uint first_tile = before / 8u + (uint)own;
  // The last expert has the empty tiles behind its own, too.
  const uint all_tiles = (dims[0] + 1u) / 2u * 1u + 40u;
  const uint last_tile = own == 39 ? all_tiles : (before + of_expert) / 8u + (uint)own + 1u;
  for (uint tile = first_tile + thread_index_in_threadgroup; tile < last_tile; tile += 256u) {
    const uint from = min((tile - first_tile) * 8u, of_expert);
    tiles[tile * 3u] = own;
    tiles[tile * 3u + 1u] = (int)(before + from);
    tiles[tile * 3u + 2u] = (int)(before + min(from + 8u, of_expert));
  }
}
