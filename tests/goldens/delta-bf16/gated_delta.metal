// gated_delta_2203efbf
// small spec of a test
//
// The gated delta rule: of each head S = g S + k (x) beta (v - g S^T k), out = S^T q.
// A simdgroup has 8 columns of a head's state in registers and walks through the tokens of a sequence. Simdgroups do not wait
// for each other: each divides q and k by their lengths itself.
// Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", in its form of a recurrence.
// Grid: (4 heads x 2 parts of 32 columns, seqs) threadgroups of 4 simdgroups.
//   q  [tokens, 256] bf16: from column 0 on
//   k  [tokens, 256] bf16: from column 48 on
//   v  [tokens, 256] bf16: from column 96 on
//   a  [tokens, 424] bf16: from column 416 on
//   b  [tokens, 424] bf16: from column 420 on
//   rate         [4] f32
//   dt_bias      [4] f32
//   query_start  [seqs + 1] i32: first token of each sequence
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; those that are written, the last token's first
//   layer        [8] u32: the layer's place in the store first
//   states       [slots, 1, 4, 24, 40] f32, written
//   token, token_out  [8] u32
//   out          [tokens, 160] bf16
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
// ---- kernel
[[kernel]] void gated_delta_2203efbf(
  const device bfloat16_t* q [[buffer(0)]],
  const device bfloat16_t* k [[buffer(1)]],
  const device bfloat16_t* v [[buffer(2)]],
  const device bfloat16_t* a [[buffer(3)]],
  const device bfloat16_t* b [[buffer(4)]],
  const device float* rate [[buffer(5)]],
  const device float* dt_bias [[buffer(6)]],
  const device int32_t* query_start [[buffer(7)]],
  const device int32_t* state_table [[buffer(8)]],
  const device uint32_t* layer [[buffer(9)]],
  const device float* states [[buffer(10)]],
  const device uint32_t* token [[buffer(11)]],
  device bfloat16_t* out [[buffer(12)]],
  device uint32_t* token_out [[buffer(13)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  device float* kept = const_cast<device float*>(states);
  const uint sequence = threadgroup_position_in_grid.y;
  const uint head = threadgroup_position_in_grid.x / 2u;
  const uint key = (head / 2u) * 24u;
  const uint lane = thread_index_in_simdgroup;
  const uint column = (threadgroup_position_in_grid.x % 2u * 4u + simdgroup_index_in_threadgroup) * 8u + lane % 2u * 4u;
  const uint first_row = lane / 2u * 2u;
  const int columns = state_table[0];
  const device int* slots = state_table + 1 + (ulong)sequence * columns;
  const ulong element = ((ulong)layer[0] * 4u + head) * 960u;
  const bool remembers = slots[0] >= 0;
  const bool in_columns = column < 40u;
  float4 state[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    state[i] = float4(0.0f);
    if (remembers && in_columns && first_row + i < 24u) {
      state[i] = *(const device float4*)(kept + (remembers ? (ulong)slots[0] : 0ul) * 3840u + element + (first_row + i) * 40u + column);
    }
  }
  const float own_rate = rate[head];
  const int begin = query_start[sequence];
  const int end = query_start[sequence + 1];
  for (int t = begin; t < end; t++) {
    float q_t[2], k_t[2];
    const device bfloat16_t* of_q = q + (ulong)(t) * 256u + 0u + key + first_row;
    const device bfloat16_t* of_k = k + (ulong)(t) * 256u + 48u + key + first_row;
    const device bfloat16_t* of_a = a + (ulong)(t) * 424u + 416u + head;
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      const bool there = first_row + i < 24u;
      q_t[i] = there ? (float)of_q[i] : 0.0f;
      k_t[i] = there ? (float)of_k[i] : 0.0f;
    }
    const float g = metal::precise::exp(own_rate * softplus((float)of_a[0] + dt_bias[head]));
    const float beta = sigmoid((float)(b + (ulong)(t) * 424u + 420u)[head]);
    const device bfloat16_t* of_v = v + (ulong)(t) * 256u + 96u + head * 40u + column;
    float4 v_t = float4(0.0f);
    if (in_columns) {
      v_t = float4((float)of_v[0], (float)of_v[1], (float)of_v[2], (float)of_v[3]);
    }
    const float4 y = delta_token(state, q_t, k_t, v_t, g, beta);
    if (lane < 2u && in_columns) {
      device bfloat16_t* to = out + (ulong)t * 160u + head * 40u + column;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        to[j] = (bfloat16_t)y[j];
      }
    }
    if (end - t < columns && slots[end - t] >= 0) {
      #pragma unroll
      for (uint i = 0; i < 2u; i++) {
        if (in_columns && first_row + i < 24u) {
          *(device float4*)(kept + (ulong)slots[end - t] * 3840u + element + (first_row + i) * 40u + column) = state[i];
        }
      }

    }
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
