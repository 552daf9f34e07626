// ssd_2247f439
// small spec of a test
//
// The scan of Mamba-2: by head S = decay S + (dt x) B^T, out = S C + d x, times silu(gate).
// 8 lanes have a row of a head's state in registers, and walk through the tokens of a sequence.
// Grid: (6 heads x 1 parts of 24 rows, seqs) threadgroups of 192 threads.
//   x      [tokens, 264] bf16: from column 0 on 6 heads of 24
//   b, c   [tokens, 264] bf16, [tokens, 264] bf16: from columns 144 and 204 on 3 groups of 20
//   dt     [tokens, 414] bf16: from column 408 on a number of each head
//   a, d, dt_bias  [6] f32
//   gate   [tokens, 414] bf16: from column 0 on heads as in x
//   query_start  [seqs + 1] i32: first token of each sequence
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; those that are written, the last token's first
//   layer        [8] u32: the layer's place in the store first
//   states       [slots, 2, 6, 24, 20] f32, written
//   token, token_out  [8] u32
//   out    [tokens, 144] bf16
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
inline float silu(float x) { return x / (1.0f + metal::precise::exp(-x)); }
// ---- kernel
[[kernel]] void ssd_2247f439(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* b [[buffer(1)]],
  const device bfloat16_t* c [[buffer(2)]],
  const device bfloat16_t* dt [[buffer(3)]],
  const device bfloat16_t* gate [[buffer(4)]],
  const device float* a [[buffer(5)]],
  const device float* d [[buffer(6)]],
  const device float* dt_bias [[buffer(7)]],
  const device float* states [[buffer(8)]],
  const device int32_t* query_start [[buffer(9)]],
  const device int32_t* state_table [[buffer(10)]],
  const device uint32_t* layer [[buffer(11)]],
  const device uint32_t* token [[buffer(12)]],
  device bfloat16_t* out [[buffer(13)]],
  device uint32_t* token_out [[buffer(14)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  MLXR_THREADGROUP(float, shared_b, 320);
  MLXR_THREADGROUP(float, shared_c, 320);
  MLXR_THREADGROUP(float, steps, 16);
  MLXR_THREADGROUP(float, decays, 16);
  device float* kept = const_cast<device float*>(states);
  const uint sequence = threadgroup_position_in_grid.y;
  const uint head = threadgroup_position_in_grid.x / 1u;
  const uint group = head / 2u;
  const uint thread_id = thread_index_in_threadgroup;
  const uint lane = thread_id % 8u;
  const uint row = threadgroup_position_in_grid.x % 1u * 24u + thread_id / 8u;
  const bool there = true;
  const int columns = state_table[0];
  const device int* slots = state_table + 1 + (ulong)sequence * columns;
  const ulong element = (ulong)layer[0] * 2880u + (ulong)(head * 24u + row) * 20u;
  const int begin = query_start[sequence];
  const int end = query_start[sequence + 1];
  // Quad q of a lane: elements 4 (q * lanes + lane) and the next three.
  float4 state[1];
#pragma unroll
  for (uint q = 0; q < 1u; q++) {
    const uint n = 4u * (q * 8u + lane);
    state[q] = float4(0.0f);
    if (there && slots[0] >= 0 && n < 20u) {
      state[q] = *(const device float4*)(kept + (ulong)slots[0] * 5760u + element + n);
    }
  }
  const float own_a = a[head];
  const float own_d = d[head];
  for (int first = begin; first < end; first += 16) {
    const uint count = (uint)min(16, end - first);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_id; i < count * 20u; i += 192u) {
      const ulong token_of = (ulong)first + i / 20u;
      const uint n = group * 20u + i % 20u;
      shared_b[i] = (float)b[token_of * 264u + 144u + n];
      shared_c[i] = (float)c[token_of * 264u + 204u + n];
    }
    if (thread_id < count) {
      const float raw = (float)dt[((ulong)first + thread_id) * 414u + 408u + head] + dt_bias[head];
      const float step = max(softplus(raw), 0.0f);
      steps[thread_id] = step;
      decays[thread_id] = metal::precise::exp(own_a * step);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint t = 0; t < count; t++) {
      const ulong token_of = (ulong)first + t;
      const uint column = head * 24u + row;
      const float own_x = there ? (float)x[token_of * 264u + 0u + column] : 0.0f;
      const float scaled = own_x * steps[t];
      const float decay = decays[t];
      float total = 0.0f;
#pragma unroll
      for (uint q = 0; q < 1u; q++) {
        const uint n = 4u * (q * 8u + lane);
        if (n >= 20u) {
          continue;
        }
        const threadgroup float* of_b = shared_b + t * 20u + n;
        const threadgroup float* of_c = shared_c + t * 20u + n;
        float4 s = state[q];
        s.x = fma(s.x, decay, scaled * of_b[0]);
        s.y = fma(s.y, decay, scaled * of_b[1]);
        s.z = fma(s.z, decay, scaled * of_b[2]);
        s.w = fma(s.w, decay, scaled * of_b[3]);
        total = fma(s.x, of_c[0], total);
        total = fma(s.y, of_c[1], total);
        total = fma(s.z, of_c[2], total);
        total = fma(s.w, of_c[3], total);
        state[q] = s;
      }
#pragma unroll
      for (uint offset = 1; offset < 8u; offset *= 2) {
        total += simd_shuffle_xor(total, offset);
      }
      if (there && lane == 0) {
        float y = fma(own_d, own_x, total);
        y *= silu((float)gate[token_of * 414u + 0u + column]);
        out[token_of * 144u + column] = (bfloat16_t)y;
      }
      const int left = end - first - (int)t;
      if (there && left < columns && slots[left] >= 0) {
#pragma unroll
        for (uint q = 0; q < 1u; q++) {
          const uint n = 4u * (q * 8u + lane);
          if (n >= 20u) {
            continue;
          }
          *(device float4*)(kept + (ulong)slots[left] * 5760u + element + n) = state[q];
        }
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
