// attend_reduce_42728894
// small spec of a test
//
// Split-KV reduction: merges the partitions of each query head by their maxima.
// Grid: (6 query heads, seqs) threadgroups of 64 threads, a thread per element of a head.
//   partial    [seqs, 6, 3, 40] f32
//   stats      [seqs, 6, 3, 4] f32: maximum (base 2), sum, unused
//   sinks      [6] f32: one more score of each head, counted here alone
//   dims       [8] u32: tokens, seqs, rows, tiles, partitions
//   out        [seqs, 240] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void attend_reduce_42728894(
  const device float* partial [[buffer(0)]],
  const device float* stats [[buffer(1)]],
  const device float* sinks [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint head = threadgroup_position_in_grid.x;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint count = dims[4];
  const ulong place = ((ulong)sequence * 6u + head) * 3u;
  const device float* s = stats + place * 4;
  float largest = s[0];
  for (uint p = 1; p < count; p++) {
    largest = max(largest, s[4 * p]);
  }
  const float sink = (float)sinks[head] * 1.44269502f;
  largest = max(largest, sink);
  for (uint i = thread_index_in_threadgroup; i < 40u; i += 64u) {
    float sum = exp2(sink - largest);
    float v = 0.0f;
    for (uint p = 0; p < count; p++) {
      const float weight = exp2(s[4 * p] - largest);
      sum += s[4 * p + 1] * weight;
      v += partial[(place + p) * 40u + i] * weight;
    }
    out[((ulong)sequence * 6u + head) * 40u + i] = (float)(v / sum);
  }
}
