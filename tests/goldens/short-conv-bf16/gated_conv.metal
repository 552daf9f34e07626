// gated_conv_0ae0895a
// small spec of a test
//
// c * conv(b * x), conv[t] = sum over j < 3 of weight[j] x[t - 2 + j], of each channel.
// Grid: (64 channels by 64, seqs); a thread walks through the tokens of its channel.
//   x            [tokens, 192] bf16: b, c and x, 64 columns each
//   weight       [64, 3] f32: the oldest token's first
//   query_start  [seqs + 1] i32: first token of each sequence
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; those that are written, the last token's first
//   layer        [8] u32: the layer's place in the store first
//   conv_states  [slots, 2, 64, 2] f32: the last inputs, the oldest first; written
//   token, token_out  [8] u32
//   out          [tokens, 64] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float input_of(const device bfloat16_t* x, ulong token, uint channel) {
  const device bfloat16_t* row = x + token * 192u + channel;
  return (float)row[0] * (float)row[128];
}
// ---- kernel
[[kernel]] void gated_conv_0ae0895a(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device int32_t* query_start [[buffer(2)]],
  const device int32_t* state_table [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device float* conv_states [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device bfloat16_t* out [[buffer(7)]],
  device uint32_t* token_out [[buffer(8)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  device float* kept = const_cast<device float*>(conv_states);
  const uint channel = threadgroup_position_in_grid.x * 64u + thread_index_in_threadgroup;
  const uint tile = threadgroup_position_in_grid.y;
  if (threadgroup_position_in_grid.x == 0 && tile == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
  const uint sequence = tile;
  const int first = query_start[sequence];
  const int end = query_start[sequence + 1];
  const int last = end;
  const int begin = query_start[sequence];
  const int columns = state_table[0];
  const device int* slots = state_table + 1 + (ulong)sequence * columns;
  const ulong element = ((ulong)layer[0] * 64u + channel) * 2u;
  const ulong slot_size = 256u;
  // The newest input goes to the end.
  float inputs[3];
  float filter[3];
#pragma unroll
  for (int j = 0; j < 3; j++) {
    filter[j] = weight[(ulong)channel * 3u + j];
  }
#pragma unroll
  for (int j = 0; j < 2; j++) {
    const int t = first - 2 + j;
    inputs[j + 1] = t >= begin ? input_of(x, (ulong)t, channel)
        : slots[0] < 0 ? 0.0f : kept[(ulong)slots[0] * slot_size + element + (uint)(t - begin + 2)];
  }
  for (int t = first; t < last; t++) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      inputs[j] = inputs[j + 1];
    }
    inputs[2] = input_of(x, (ulong)t, channel);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 3; j++) {
      sum = fma(filter[j], inputs[j], sum);
    }
    sum *= (float)x[(ulong)t * 192u + 64u + channel];
    out[(ulong)t * 64u + channel] = (bfloat16_t)sum;
    const int left = end - t;
    if (left < columns && slots[left] >= 0) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        kept[(ulong)slots[left] * slot_size + element + (uint)j] = inputs[j + 1];
      }
    }
  }
}
