// expert_order_a3fca18f
// small spec of a test
//
// The choices of all tokens by expert: those of an expert one after the other, in the order of the tokens. They are cut
// into tiles of at most 64 choices of one expert. An expert whose first choice has the place p begins at tile
// p / 64 + expert, which leaves room for a tile that is not full; tiles without choices are empty.
// Grid: 20 threadgroups of 8 simdgroups, each for one expert.
//   experts    [tokens, 3] i32; -1: another rank's, in no tile
//   dims       [8] u32: tokens, seqs, rows, tiles
//   order      [tokens * 3] i32: token * 3 + choice
//   tiles      [tiles, 3] i32: expert, the place of its first choice, and the place after its last; ceil(tokens/21)+20 tiles
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void expert_order_a3fca18f(
  const device int32_t* experts [[buffer(0)]],
  const device uint32_t* dims [[buffer(1)]],
  device int32_t* order [[buffer(2)]],
  device int32_t* tiles [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
  const int own = (int)threadgroup_position_in_grid.x;
  const uint choices = dims[0] * 3u;
  // A thread looks at choices that follow each other, four at a time.
  const uint share = (choices + 1023u) / 1024u * 4u;
  const uint first = min(thread_index_in_threadgroup * share, choices), end = min(first + share, choices);
  uint lower = 0, mine = 0;
  for (uint at = first; at < end; at += 4u) {
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      const int expert = at + i < end ? experts[at + i] : 20;
      lower += expert >= 0 && expert < own ? 1u : 0u;
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
    if (experts[at] == own) {
      order[place++] = (int)at;
    }
  }
  const uint first_tile = before / 64u + (uint)own;
  // The last expert has the empty tiles behind its own, too.
  const uint all_tiles = (dims[0] + 20u) / 21u * 1u + 20u;
  const uint last_tile = own == 19 ? all_tiles : (before + of_expert) / 64u + (uint)own + 1u;
  for (uint tile = first_tile + thread_index_in_threadgroup; tile < last_tile; tile += 256u) {
    const uint from = min((tile - first_tile) * 64u, of_expert);
    tiles[tile * 3u] = own;
    tiles[tile * 3u + 1u] = (int)(before + from);
    tiles[tile * 3u + 2u] = (int)(before + min(from + 64u, of_expert));
  }
}
