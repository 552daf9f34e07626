// delta_decode_b04d5425
// small spec of a test
//
// A gated delta layer between its projections, of one token of each sequence: q, k, v = silu(conv(x)), of each head
// S = g S + k (x) beta (v - g S^T k), y = S^T q, out = RMSNorm(y) * sigmoid(gate).
// A simdgroup has 1 x 8 columns of the head's state; channels of q and k go through threadgroup memory.
// Grid: (8 heads, seqs) threadgroups of 5 simdgroups.
//   x  [seqs, 776] bf16: from column 0 on 8 queries, as many keys, 8 values
//   a, b, gate  [seqs, 776], [seqs, 776], [seqs, 776] bf16: from columns 736, 768 and 704 on
//   weight       [704, 3] f32: the oldest token's first
//   rate         [8] f32
//   dt_bias      [192] f32
//   norm         [40] f32
//   decay_b    [6528] u8
//     rows 0 to 191: [192, 32] q8_0 at byte 0
//   gate_b     [320, 32] bf16
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; the slot that is written
//   layer        [8] u32: the layer's place in the stores first
//   conv_states  [slots, 1, 704, 2] f32, written
//   states       [slots, 1, 8, 24, 40] f32, written
//   token, token_out  [8] u32
//   out          [seqs, 320] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void load_bf16_16(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
  unpack_bf16(*(const device uint4*)(p + 8), v + 2);
}

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
#ifndef MLXR_SUM  // a host's compiler may need telling not to fuse it with the product x
#define MLXR_SUM(x, y) ((x) + (y))
#endif
inline uint load_u32_1(const device uint8_t* p) {
  return (uint)p[0] | (uint)p[1] << 8 | (uint)p[2] << 16 | (uint)p[3] << 24;
}
inline uint load_u32_2(const device uint8_t* p) {
  const device uint16_t* halves = (const device uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
inline uint load_u32(const device uint8_t* p) { return *(const device uint*)p; }
inline uint2 load_u32x2(const device uint8_t* p) { return *(const device uint2*)p; }
inline uint4 load_u32x4(const device uint8_t* p) { return *(const device uint4*)p; }
inline float load_half(const device uint8_t* p) { return (float)*(const device half*)p; }
inline float half_of(uint bits) { return (float)as_type<half>((uint16_t)bits); }
inline float4 unsigned_bytes(uint u) { return float4(as_type<uchar4>(u)); }
inline float4 signed_bytes(uint u) { return float4(as_type<char4>(u)); }
// Bits 0 to 3 of x as bit 0 of each byte.
inline uint spread_bits(uint x) { return ((x & 15u) * 0x00204081u) & 0x01010101u; }
struct Row_q8_0 {
  const device uint8_t* blocks;
};
struct Raw_q8_0 { uint q[4]; float scale; };
inline Raw_q8_0 raw_q8_0(Row_q8_0 row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 2u * 34u;
  Raw_q8_0 raw;
  raw.scale = load_half(block);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.q[i] = load_u32_2(block + 2u + piece % 2u * 16u + i * 4u);
  }
  return raw;
}
inline void codes_q8_0(Raw_q8_0 raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    c[i] = signed_bytes(raw.q[i]);
  }
}
inline float2 scale_q8_0(Raw_q8_0 raw, uint run) { return float2(raw.scale, 0.0f); }
// A run's elements.
inline void values_q8_0(Raw_q8_0 raw, uint run, thread float4* c) {
  codes_q8_0(raw, run, c);
  const float2 scale = scale_q8_0(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
  }
}
struct Row_bf16 {
  const device bfloat16_t* data;
};
struct Raw_bf16 { uint4 v; };
inline Raw_bf16 raw_bf16(Row_bf16 row, uint piece) { return Raw_bf16{*(const device uint4*)(row.data + piece * 8u)}; }
inline void codes_bf16(Raw_bf16 raw, uint run, thread float4* c) { unpack_bf16(raw.v, c); }

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
inline float4 delta_token(thread float4* state, thread const float* q, thread const float* k, float4 v, thread const float* g, float beta) {
  float4 of_k = float4(0.0f), of_q = float4(0.0f);
  float kk = 0.0f, qq = 0.0f, kq = 0.0f;
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    state[i] *= g[i];
    of_k += state[i] * k[i];
    of_q += state[i] * q[i];
    kk = fma(k[i], k[i], kk);
    qq = fma(q[i], q[i], qq);
    kq = fma(k[i], q[i], kq);
  }
  const float unit_k = metal::precise::rsqrt(over_rows(kk) + 9.99999997e-07f);
  const float unit_q = metal::precise::rsqrt(over_rows(qq) + 9.99999997e-07f) * 0.204124153f;
  const float4 known = float4(over_rows(of_k.x), over_rows(of_k.y), over_rows(of_k.z), over_rows(of_k.w)) * (unit_k);
  const float4 answer = float4(over_rows(of_q.x), over_rows(of_q.y), over_rows(of_q.z), over_rows(of_q.w)) * (unit_q);
  const float4 correction = (v - known) * beta;
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const float of_row = k[i] * unit_k;
    const float4 decayed = state[i];
    state[i].x = fma(of_row, correction.x, decayed.x);
    state[i].y = fma(of_row, correction.y, decayed.y);
    state[i].z = fma(of_row, correction.z, decayed.z);
    state[i].w = fma(of_row, correction.w, decayed.w);
  }
  return answer + correction * (over_rows(kq) * unit_k * unit_q);
}
inline float silu(float x) { return x * sigmoid(x); }
inline float gate_of(float x) { return sigmoid(x); }
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
[[kernel]] void delta_decode_b04d5425(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* a [[buffer(1)]],
  const device bfloat16_t* b [[buffer(2)]],
  const device bfloat16_t* gate [[buffer(3)]],
  const device float* weight [[buffer(4)]],
  const device float* rate [[buffer(5)]],
  const device float* dt_bias [[buffer(6)]],
  const device float* norm [[buffer(7)]],
  const device uint8_t* decay_b [[buffer(8)]],
  const device bfloat16_t* gate_b [[buffer(9)]],
  const device int32_t* state_table [[buffer(10)]],
  const device uint32_t* layer [[buffer(11)]],
  const device float* conv_states [[buffer(12)]],
  const device float* states [[buffer(13)]],
  const device uint32_t* token [[buffer(14)]],
  device bfloat16_t* out [[buffer(15)]],
  device uint32_t* token_out [[buffer(16)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  MLXR_THREADGROUP(float, channels, 88);
  MLXR_THREADGROUP(float, squares_of, 5);
  device float* kept = const_cast<device float*>(states);
  const uint head = threadgroup_position_in_grid.x;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint key = head;
  const uint lane = thread_index_in_simdgroup;
  const int columns = state_table[0];
  const device int* slots = state_table + 1 + (ulong)sequence * columns;
  const bool remembers = slots[0] >= 0;
  const int goes_to = columns > 1 ? slots[1] : -1;
  const ulong element = ((ulong)layer[0] * 8u + head) * 960u;
  const device float* past = conv_states + (remembers ? (ulong)slots[0] : 0ul) * 1408u + (ulong)layer[0] * 1408u;
  device float* next = const_cast<device float*>(conv_states) + (goes_to >= 0 ? (ulong)goes_to : 0ul) * 1408u + (ulong)layer[0] * 1408u;
  const device bfloat16_t* own_x = x + (ulong)sequence * 776u + 0u;
  for (uint i = thread_index_in_threadgroup; i < 88u; i += 160u) {
    const bool of_key = i < 48u;
    const uint channel = of_key ? (i < 24u ? key * 24u + i : 168u + key * 24u + i) : 384u + head * 40u + (i - 48u);
    channels[i] = convolve(own_x, weight, past, next, remembers, goes_to >= 0, channel);
  }
  const uint first_row = lane / 2u * 2u;
  const float own_rate = rate[head];
  MLXR_THREADGROUP(float, decays, 24);
  MLXR_THREADGROUP(float, gates, 40);
  const float beta = sigmoid((float)b[(ulong)sequence * 776u + 768u + head]);
  float4 result[1];
  float squares = 0.0f;
  // Loads of the state do not wait for the convolution.
  const uint column = simdgroup_index_in_threadgroup * 8u + lane % 2u * 4u;
  float4 state[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    state[i] = float4(0.0f);
    if (remembers && first_row + i < 24u) {
      state[i] = *(const device float4*)(kept + (remembers ? (ulong)slots[0] : 0ul) * 7680u + element + (first_row + i) * 40u + column);
    }
  }
  {
    const device bfloat16_t* input = a + (ulong)sequence * 776u + 736u;
    threadgroup float* target = decays;
    for (uint base = simdgroup_index_in_threadgroup * 32u; base < 24u; base += 160u) {
      const uint end = 24u;
      const uint head_row = head * 24u;
      // 8 lanes to a row; those past the last row repeat others.
      const uint own = base + thread_index_in_simdgroup / 8u * 8u;
      const uint first = own < end ? own : base;
      const uint lane = thread_index_in_simdgroup % 8u;
  float4 sums[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_q8_0 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_q8_0{decay_b + (ulong)row * 34u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_q8_0 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_q8_0(w[r], min(lane + step * 32u, 1u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 2u) {
      break;
    }
    const thread Raw_q8_0* raw = raws[step];
    const uint column = piece * 16u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[4];
      load_bf16_16(input + column + run * 16u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[4];
        codes_q8_0(raw[r], run, c);
        const float2 factor = scale_q8_0(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 4u; j++) {
          products += c[j] * v[j];
        }
        sums[r] += products * factor.x;
      }
    }
  }
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    float total = sum4(sums[r]);
#pragma unroll
    for (ushort offset = 4; offset > 0; offset /= 2) {
      total += simd_shuffle_xor(total, offset);
    }
    y = lane == r ? total : y;
  }
      const uint o = first + lane;
      if (lane < 8u && o < end && own < end) {
        target[o] = y;
      }
    }
  }
  {
    const device bfloat16_t* input = gate + (ulong)sequence * 776u + 704u;
    threadgroup float* target = gates;
    for (uint base = simdgroup_index_in_threadgroup * 32u; base < 40u; base += 160u) {
      const uint end = 40u;
      const uint head_row = head * 40u;
      // 8 lanes to a row; those past the last row repeat others.
      const uint own = base + thread_index_in_simdgroup / 8u * 8u;
      const uint first = own < end ? own : base;
      const uint lane = thread_index_in_simdgroup % 8u;
  float4 sums[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_bf16 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_bf16{gate_b + (ulong)row * 32u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 3u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 4u) {
      break;
    }
    const thread Raw_bf16* raw = raws[step];
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      load_bf16_8(input + column + run * 8u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[2];
        codes_bf16(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    float total = sum4(sums[r]);
#pragma unroll
    for (ushort offset = 4; offset > 0; offset /= 2) {
      total += simd_shuffle_xor(total, offset);
    }
    y = lane == r ? total : y;
  }
      const uint o = first + lane;
      if (lane < 8u && o < end && own < end) {
        target[o] = y;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const threadgroup float* of_a = decays + first_row;
  float g[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    g[i] = first_row + i >= 24u ? 1.0f : metal::precise::exp(own_rate * softplus((float)of_a[i] + dt_bias[head * 24u + first_row + i]));
  }
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
          *(device float4*)(kept + (ulong)goes_to * 7680u + element + (first_row + i) * 40u + column) = state[i];
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
      const threadgroup float* z = gates + column;
      device bfloat16_t* to = out + (ulong)sequence * 320u + head * 40u + column;
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
