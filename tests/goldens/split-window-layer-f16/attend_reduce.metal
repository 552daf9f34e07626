// attend_reduce_50a952bd
// small spec of a test
//
// Split-KV reduction: merges the partitions of each query head by their maxima.
// Grid: (2 query heads, seqs) threadgroups of 64 threads, a thread per element of a head.
//   partial    [seqs, 2, 3, 40] f32
//   stats      [seqs, 2, 3, 4] f32: maximum (base 2), sum, unused
//   dims       [8] u32: tokens, seqs, rows, tiles, partitions
//   out        [seqs, 80] f16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void attend_reduce_50a952bd(
  const device float* partial [[buffer(0)]],
  const device float* stats [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device float16_t* out [[buffer(3)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint head = threadgroup_position_in_grid.x;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint count = dims[4];
  const ulong place = ((ulong)sequence * 2u + head) * 3u;
  const device float* s = stats + place * 4;
  float largest = s[0];
  for (uint p = 1; p < count; p++) {
    largest = max(largest, s[4 * p]);
  }
  for (uint i = thread_index_in_threadgroup; i < 40u; i += 64u) {
    float sum = 0.0f;
    float v = 0.0f;
    for (uint p = 0; p < count; p++) {
      const float weight = exp2(s[4 * p] - largest);
      sum += s[4 * p + 1] * weight;
      v += partial[(place + p) * 40u + i] * weight;
    }
    out[((ulong)sequence * 2u + head) * 40u + i] = (float16_t)(v / sum);
  }
}
