// delta_decode_e10b6d39
// small spec of a test
//
// A gated delta layer between its projections, of one token of each sequence: q, k, v = silu(conv(x)), of each head
// S = g S + k (x) beta (v - g S^T k), y = S^T q, out = RMSNorm(y) * silu(gate).
// A simdgroup has 1 x 8 columns of the head's state; channels of q and k go through threadgroup memory.
// Grid: (4 heads, seqs) threadgroups of 5 simdgroups.
//   x  [seqs, 424] bf16: from column 0 on 2 queries, as many keys, 4 values
//   a, b, gate  [seqs, 424], [seqs, 424], [seqs, 424] bf16: from columns 416, 420 and 256 on
//   weight       [256, 3] f32: the oldest token's first
//   rate         [4] f32
//   dt_bias      [4] f32
//   norm         [40] f32
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; the slot that is written
//   layer        [8] u32: the layer's place in the stores first
//   conv_states  [slots, 1, 256, 2] f32, written
//   states       [slots, 1, 4, 24, 40] f32, written
//   token, token_out  [8] u32
//   out          [seqs, 160] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float softplus(float x) {
  const float u = metal::precise::exp(-metal::abs(x));
  const float s = u / (u + 2.0f);
  const float t = s * s;
  float p = fma(t, 0.0666666701f, 0.0769230798f);
  p = fma(p, t, 0.0909090936f);
  p = fma(p, t, 0.111111112f);
  p = fma(p, t, 0.142857149f);
  p = fma(p, t, 0.200000003f);
  p = fma(p, t, 0.333333343f);
  return max(x, 0.0f) + 2.0f * fma(p * t, s, s);
}
inline float sigmoid(float x) { return 1.0f / (1.0f + metal::precise::exp(-x)); }
inline float over_rows(float x) {
#pragma unroll
  for (uint offset = 2; offset < 32; offset *= 2) {
    x += simd_shuffle_xor(x, offset);
  }
  return x;
}
inline float4 delta_token(thread float4* state, thread const float* q, thread const float* k, float4 v, float g, float beta) {
  float4 of_k = float4(0.0f), of_q = float4(0.0f);
  float kk = 0.0f, qq = 0.0f, kq = 0.0f;
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    of_k += state[i] * k[i];
    of_q += state[i] * q[i];
    kk = fma(k[i], k[i], kk);
    qq = fma(q[i], q[i], qq);
    kq = fma(k[i], q[i], kq);
  }
  const float unit_k = metal::precise::rsqrt(over_rows(kk) + 9.99999997e-07f);
  const float unit_q = metal::precise::rsqrt(over_rows(qq) + 9.99999997e-07f) * 0.204124153f;
  const float4 known = float4(over_rows(of_k.x), over_rows(of_k.y), over_rows(of_k.z), over_rows(of_k.w)) * (g * unit_k);
  const float4 answer = float4(over_rows(of_q.x), over_rows(of_q.y), over_rows(of_q.z), over_rows(of_q.w)) * (g * unit_q);
  const float4 correction = (v - known) * beta;
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const float of_row = k[i] * unit_k;
    const float4 decayed = state[i] * g;
    state[i].x = fma(of_row, correction.x, decayed.x);
    state[i].y = fma(of_row, correction.y, decayed.y);
    state[i].z = fma(of_row, correction.z, decayed.z);
    state[i].w = fma(of_row, correction.w, decayed.w);
  }
  return answer + correction * (over_rows(kq) * unit_k * unit_q);
}
inline float silu(float x) { return x * sigmoid(x); }
inline float gate_of(float x) { return silu(x); }
// The newest output of a channel's convolution; its inputs go to `next`, if it `writes`.
inline float convolve(const device bfloat16_t* x, const device float* weight, const device float* past, device float* next, bool remembers, bool writes, uint channel) {
  const device float* w = weight + channel * 3u;
  const float newest = (float)x[channel];
  float y = 0.0f;
#pragma unroll
  for (uint j = 0; j < 2u; j++) {
    const float value = remembers ? past[channel * 2u + j] : 0.0f;
    y = fma(w[j], value, y);
    if (writes && j > 0) {
      next[channel * 2u + j - 1] = value;
    }
  }
  if (writes) {
    next[channel * 2u + 1] = newest;
  }
  return (float)(bfloat16_t)silu(fma(w[2], newest, y));
}
// ---- kernel
[[kernel]] void delta_decode_e10b6d39(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* a [[buffer(1)]],
  const device bfloat16_t* b [[buffer(2)]],
  const device bfloat16_t* gate [[buffer(3)]],
  const device float* weight [[buffer(4)]],
  const device float* rate [[buffer(5)]],
  const device float* dt_bias [[buffer(6)]],
  const device float* norm [[buffer(7)]],
  const device int32_t* state_table [[buffer(8)]],
  const device uint32_t* layer [[buffer(9)]],
  const device float* conv_states [[buffer(10)]],
  const device float* states [[buffer(11)]],
  const device uint32_t* token [[buffer(12)]],
  device bfloat16_t* out [[buffer(13)]],
  device uint32_t* token_out [[buffer(14)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  MLXR_THREADGROUP(float, channels, 88);
  MLXR_THREADGROUP(float, squares_of, 5);
  device float* kept = const_cast<device float*>(states);
  const uint head = threadgroup_position_in_grid.x;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint key = (head / 2u);
  const uint lane = thread_index_in_simdgroup;
  const int columns = state_table[0];
  const device int* slots = state_table + 1 + (ulong)sequence * columns;
  const bool remembers = slots[0] >= 0;
  const int goes_to = columns > 1 ? slots[1] : -1;
  const ulong element = ((ulong)layer[0] * 4u + head) * 960u;
  const device float* past = conv_states + (remembers ? (ulong)slots[0] : 0ul) * 512u + (ulong)layer[0] * 512u;
  device float* next = const_cast<device float*>(conv_states) + (goes_to >= 0 ? (ulong)goes_to : 0ul) * 512u + (ulong)layer[0] * 512u;
  const device bfloat16_t* own_x = x + (ulong)sequence * 424u + 0u;
  for (uint i = thread_index_in_threadgroup; i < 88u; i += 160u) {
    const bool of_key = i < 48u;
    const uint channel = of_key ? (i < 24u ? key * 24u + i : 24u + key * 24u + i) : 96u + head * 40u + (i - 48u);
    channels[i] = convolve(own_x, weight, past, next, remembers, goes_to >= 0 && (!of_key || head % 2u == 0), channel);
  }
  const uint first_row = lane / 2u * 2u;
  const float own_rate = rate[head];
  const device bfloat16_t* of_a = a + (ulong)sequence * 424u + 416u + head;
  const float g = metal::precise::exp(own_rate * softplus((float)of_a[0] + dt_bias[head]));
  const float beta = sigmoid((float)b[(ulong)sequence * 424u + 420u + head]);
  float4 result[1];
  float squares = 0.0f;
  // Loads of the state do not wait for the convolution.
  const uint column = simdgroup_index_in_threadgroup * 8u + lane % 2u * 4u;
  float4 state[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    state[i] = float4(0.0f);
    if (remembers && first_row + i < 24u) {
      state[i] = *(const device float4*)(kept + (remembers ? (ulong)slots[0] : 0ul) * 3840u + element + (first_row + i) * 40u + column);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float q_t[2], k_t[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const bool there = first_row + i < 24u;
    q_t[i] = there ? channels[first_row + i] : 0.0f;
    k_t[i] = there ? channels[24u + first_row + i] : 0.0f;
  }
  {
    const uint tile = 0;
    float4 v_t = float4(0.0f);
    {
      const uint at = 48u + column;
      v_t = float4(channels[at], channels[at + 1], channels[at + 2], channels[at + 3]);
    }
    const float4 y = delta_token(state, q_t, k_t, v_t, g, beta);
    if (goes_to >= 0) {
      #pragma unroll
      for (uint i = 0; i < 2u; i++) {
        if (true && first_row + i < 24u) {
          *(device float4*)(kept + (ulong)goes_to * 3840u + element + (first_row + i) * 40u + column) = state[i];
        }
      }

    }
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      result[tile][j] = (float)(bfloat16_t)y[j];
      squares = fma(result[tile][j], result[tile][j], squares);
    }
  }
  // All lanes of a column have its result: of each pair of quads one counts.
  squares += simd_shuffle_xor(squares, 1);
  if (lane == 0) {
    squares_of[simdgroup_index_in_threadgroup] = squares;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
#pragma unroll
  for (uint i = 0; i < 5u; i++) {
    total += squares_of[i];
  }
  const float scale = metal::precise::rsqrt(total * 0.0250000004f + 9.99999975e-06f);
  if (lane < 2u) {
#pragma unroll
    for (uint tile = 0; tile < 1u; tile++) {
      const uint column = (simdgroup_index_in_threadgroup + tile * 5u) * 8u + lane * 4u;
      const device bfloat16_t* z = gate + (ulong)sequence * 424u + 256u + head * 40u + column;
      device bfloat16_t* to = out + (ulong)sequence * 160u + head * 40u + column;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        to[j] = (bfloat16_t)(result[tile][j] * scale * norm[column + j] * gate_of((float)z[j]));
      }
    }
  }
  if (head == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
