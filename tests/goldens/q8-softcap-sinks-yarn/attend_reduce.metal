// attend_reduce_a81825b7
// small spec of a test
//
// Split-KV reduction: merges the partitions of each query head by their maxima.
// Grid: (6 query heads, seqs) threadgroups of 64 threads, a thread per element of a head.
//   partial    [seqs, 6, 3, 40] f32
//   stats      [seqs, 6, 3, 4] f32: maximum (base 2), sum, unused
//   sinks      [6] f32: one more score of each head, counted here alone
//   positions  [seqs] i32, of the new tokens
//   out        [seqs, 240] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_AWAIT_INPUTS  // a decode step of one kernel waits there for what other threadgroups make
#define MLXR_AWAIT_INPUTS()
#endif
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_reduce_a81825b7(
  const device float* partial [[buffer(0)]],
  const device float* stats [[buffer(1)]],
  const device float* sinks [[buffer(2)]],
  const device int32_t* positions [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint head = threadgroup_position_in_grid.x;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const uint start = (position + 1 > 9u ? position + 1 - 9u : 0u);
  const uint length = (position - start) / 48u * 16u + 16u;
  const uint count = (position - start) / length + 1;
  const ulong place = ((ulong)sequence * 6u + head) * 3u;
  const device float* s = stats + place * 4;
  // Lane l of every simdgroup weighs partitions l, l + 32, ...
  const uint lane = thread_index_in_simdgroup;
  const uint i = min(thread_index_in_threadgroup, 39u);
  MLXR_AWAIT_INPUTS()
  // Eight partitions' values are asked for before they are weighed.
  float first_values[8];
#pragma unroll
  for (uint j = 0; j < 8; j++) {
    first_values[j] = partial[(place + min(j, count - 1)) * 40u + i];
  }
  float largest = LOWEST;
  for (uint p = lane; p < count; p += 32) {
    largest = max(largest, s[4 * p]);
  }
  largest = simd_max(largest);
  const float sink = (float)sinks[head] * 1.44269502f;
  largest = max(largest, sink);
  float total = 0.0f;
  float v = 0.0f;
  for (uint first = 0; first < count; first += 32) {
    const uint p = min(first + lane, count - 1);
    const float weight = first + lane < count ? exp2(s[4 * p] - largest) : 0.0f;
    total += s[4 * p + 1] * weight;
    const uint of_them = min(32u, count - first);
    if (first == 0) {
#pragma unroll
      for (uint j = 0; j < 8; j++) {
        v += first_values[j] * simd_broadcast(weight, j);
      }
    }
#pragma unroll 8
    for (uint j = first == 0 ? 8 : 0; j < of_them; j++) {
      v += partial[(place + first + j) * 40u + i] * simd_broadcast(weight, j);
    }
  }
  const float sum = simd_sum(total) + exp2(sink - largest);
  if (thread_index_in_threadgroup < 40u) {
    out[((ulong)sequence * 6u + head) * 40u + i] = (float)(v / sum);
  }
}
