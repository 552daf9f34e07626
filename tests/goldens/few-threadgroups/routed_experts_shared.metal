// routed_experts_shared_508628ac
// small spec of a test
//
// The choice of 3 experts of 40 by a router's logits, and the projections of a token by them: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A shared expert and its gate, with 1024 rows: the same, with its own weight.
// As the one-row projection, with the rows of one expert. Experts that were not chosen are not read.
// Grid: (11, tokens) threadgroups of 4 simdgroups; of each token first 5 of the shared expert.
//   x          [tokens, 256] bf16
//   weight     [2949120] u8
//     rows 0 to 20479: [20480, 256] q4_k at byte 0
//   norm       [256] f32
//   experts    [tokens, 3] i32
//   logits     [tokens, 40] f32: the router's
//   gate_weight [144] u8
//     rows 0 to 0: [1, 256] q4_k at byte 0
//   weights    [tokens, 3] f32
//   out        [tokens, 3 * 256] bf16
//   shared_out [tokens, 512] bf16
//   shared_gate [tokens, 1] f32
//   shared     [147456] u8
//     rows 0 to 1023: [1024, 256] q4_k at byte 0
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

inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline void load_f32_8(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
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
struct PairScales { float scale; float minimum; uint scales; uint minima; };
// Those of sub-blocks 2 * pair and 2 * pair + 1, in the two lowest bytes of `scales` and `minima`.
inline PairScales pair_scales(uint4 head, uint pair) {
  const uint shift = 16u * (pair & 1u);
  const uint scales = pair < 2u ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u);
  const uint minima = pair < 2u ? head.z & 0x3f3f3f3fu : ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u);
  return PairScales{half_of(head.x & 0xffffu), half_of(head.x >> 16), scales >> shift, minima >> shift};
}
inline float2 scale_of(PairScales s, uint run) {
  const float scale = (float)((s.scales >> (8u * run)) & 255u);
  const float minimum = (float)((s.minima >> (8u * run)) & 255u);
  return float2(s.scale * scale, -(s.minimum * minimum));
}
struct Row_q4_k {
  const device uint8_t* blocks;
};
struct Raw_q4_k { uint2 q; PairScales scales; };
inline Raw_q4_k raw_q4_k(Row_q4_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 144u;
  return Raw_q4_k{load_u32x2(block + 16u + piece % 16u * 8u), pair_scales(load_u32x4(block), piece % 16u / 4u)};
}
inline void codes_q4_k(Raw_q4_k raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    c[i] = unsigned_bytes((raw.q[i] >> (4u * run)) & 0x0f0f0f0fu);
  }
}
inline float2 scale_q4_k(Raw_q4_k raw, uint run) { return scale_of(raw.scales, run); }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_q4_k(Raw_q4_k raw, uint run, thread float4* c) {
  codes_q4_k(raw, run, c);
  const float2 scale = scale_q4_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}

inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }


// ---- kernel
[[kernel]] void routed_experts_shared_508628ac(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* logits [[buffer(2)]],
  const device uint8_t* shared [[buffer(3)]],
  const device uint8_t* gate_weight [[buffer(4)]],
  const device float* norm [[buffer(5)]],
  device bfloat16_t* out [[buffer(6)]],
  device int32_t* experts [[buffer(7)]],
  device float* weights [[buffer(8)]],
  device bfloat16_t* shared_out [[buffer(9)]],
  device float* shared_gate [[buffer(10)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint t = threadgroup_position_in_grid.y;
  const device bfloat16_t* input = x + (ulong)t * 256u;
  const uint share = simdgroup_index_in_threadgroup % 2u;
  MLXR_THREADGROUP(float, shares, 648);
  MLXR_THREADGROUP(float, squares_of, 4);
  float4 squares = float4(0.0f);
  if (threadgroup_position_in_grid.x < 4u) {
    const uint of_all = threadgroup_position_in_grid.x * 162u;
    const uint end = 512u;
    const uint first = of_all + simdgroup_index_in_threadgroup / 2u * 1u;
    {
      uint piece_of[1];
  #pragma unroll
      for (uint step = 0; step < 1u; step++) {
        const uint own = lane + 32u * share + step * 64u;
        piece_of[step] = min(own, 15u);
      }
      Raw_q4_k raw[1][2];
  #pragma unroll
      for (uint step = 0; step < 1u; step++) {
  #pragma unroll
        for (uint r = 0; r < 1u; r++) {
          const uint row = min(first + r, end - 1);
          raw[step][r] = raw_q4_k(Row_q4_k{shared + (ulong)row * 144u}, piece_of[step]);
          raw[step][1 + r] = raw_q4_k(Row_q4_k{shared + (ulong)(row + 512u) * 144u}, piece_of[step]);
        }
      }
      float4 of_x[1][2][2];
      float total[1][2];
  #pragma unroll
      for (uint step = 0; step < 1u; step++) {
        const uint column = piece_of[step] / 4u * 64u + piece_of[step] % 4u * 8u;
        const bool has = lane + 32u * share + step * 64u < 16u;
  #pragma unroll
        for (uint run = 0; run < 2u; run++) {
          float4 v[2];
  #pragma unroll
          for (uint j = 0; j < 2u; j++) {
            v[j] = float4(0.0f);
          }
          if (has) {
          float4 n[2];
          load_f32_8(norm + column + run * 32u, n);

          load_bf16_8(input + column + run * 32u, v);
  #pragma unroll
          for (uint j = 0; j < 2u; j++) {
            squares += v[j] * v[j];
            v[j] *= n[j];
          }
          }
  #pragma unroll
          for (uint j = 0; j < 2u; j++) {
            of_x[step][run][j] = v[j];
          }
          total[step][run] = sum4(of_x[step][run][0]) + sum4(of_x[step][run][1]);
        }
      }
  #pragma unroll 1
      for (uint pass = 0; pass < 81u; pass++) {
        float sums[2];
  #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          sums[r] = 0.0f;
  #pragma unroll
          for (uint step = 0; step < 1u; step++) {
  #pragma unroll
            for (uint run = 0; run < 2u; run++) {
              float4 c[2];
              codes_q4_k(raw[step][r], run, c);
              float4 products = c[0] * of_x[step][run][0];
  #pragma unroll
              for (uint j = 1; j < 2u; j++) {
                products += c[j] * of_x[step][run][j];
              }
              const float2 factor = scale_q4_k(raw[step][r], run);
              sums[r] += sum4(products) * factor.x + total[step][run] * factor.y;
            }
          }
        }
        if (pass + 1 < 81u) {
    #pragma unroll
        for (uint step = 0; step < 1u; step++) {
    #pragma unroll
          for (uint r = 0; r < 1u; r++) {
            const uint row = min(first + (pass + 1) * 2u + r, end - 1);
            raw[step][r] = raw_q4_k(Row_q4_k{shared + (ulong)row * 144u}, piece_of[step]);
            raw[step][1 + r] = raw_q4_k(Row_q4_k{shared + (ulong)(row + 512u) * 144u}, piece_of[step]);
          }
        }
        }
        // Half of the lanes keep half of the rows, and so on: in the end, lane l has row l / 16.
  #pragma unroll
        for (uint r = 0; r < 1u; r++) {
          const float given = (lane & 16u) ? sums[r] : sums[r + 1];
          const float kept = (lane & 16u) ? sums[r + 1] : sums[r];
          sums[r] = kept + simd_shuffle_xor(given, 16);
        }
        sums[0] += simd_shuffle_xor(sums[0], 8);
        sums[0] += simd_shuffle_xor(sums[0], 4);
        sums[0] += simd_shuffle_xor(sums[0], 2);
        sums[0] += simd_shuffle_xor(sums[0], 1);
        if (lane % 16u == 0) {
          shares[(pass * 4u + simdgroup_index_in_threadgroup) * 2u + lane / 16u] = sums[0];
        }
      }
    }
    {
      const float own = simd_sum(sum4(squares));
      if (lane == 0) {
        squares_of[simdgroup_index_in_threadgroup] = own;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float of_row = 0.0f;
  #pragma unroll
    for (uint s = 0; s < 2u; s++) {
      of_row += squares_of[s];
    }
    const float scale = metal::precise::rsqrt(of_row * 0.00390625f + 9.99999975e-06f);

  for (uint at = thread_index_in_threadgroup; at < 162u && of_all + at < end; at += 128u) {
    const uint o = of_all + at;
    const uint in_tile = at % 2u;
    const uint of_rows = ((at / 2u) * 4u + in_tile / 1u * 2u) * 2u + in_tile % 1u;
    float y = 0.0f;
    float up = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      const uint at_sum = of_rows + s * 2u;
      y += shares[at_sum];
      up += shares[at_sum + 1u];
    }
      y *= scale;
      up *= scale;
      y = activate(y) * up;
      shared_out[(ulong)t * 512u + o] = (bfloat16_t)y;
  }
    return;
  }
  if (threadgroup_position_in_grid.x == 4u) {
    const uint first = ((threadgroup_position_in_grid.x - 4u) * 4u + simdgroup_index_in_threadgroup) * 1u;
    const uint end = 1u;

    if (first >= end) {
      return;
    }
    float4 sums[1];
  #pragma unroll
    for (uint r = 0; r < 1u; r++) {
      sums[r] = float4(0.0f);
    }
    float4 squares = float4(0.0f);

    Row_q4_k w[1];
  #pragma unroll
    for (uint r = 0; r < 1u; r++) {
      const uint row = first + r;
      w[r] = Row_q4_k{gate_weight + (ulong)row * 144u};
    }
    // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
    Raw_q4_k raws[1][1];
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
  #pragma unroll
      for (uint r = 0; r < 1u; r++) {
        raws[step][r] = raw_q4_k(w[r], min(lane + step * 32u, 15u));
      }
    }
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint piece = lane + step * 32u;
      if (piece >= 16u) {
        break;
      }
      const thread Raw_q4_k* raw = raws[step];
      const uint column = piece / 4u * 64u + piece % 4u * 8u;
  #pragma unroll
      for (uint run = 0; run < 2u; run++) {
        float4 v[2];
        float4 n[2];
        load_f32_8(norm + column + run * 32u, n);

        load_bf16_8(input + column + run * 32u, v);
  #pragma unroll
        for (uint j = 0; j < 2u; j++) {
          squares += v[j] * v[j];
          v[j] *= n[j];
        }
        const float total = sum4(v[0]) + sum4(v[1]);
  #pragma unroll
        for (uint r = 0; r < 1u; r++) {
          float4 c[2];
          codes_q4_k(raw[r], run, c);
          const float2 factor = scale_q4_k(raw[r], run);
          float4 products = c[0] * v[0];
  #pragma unroll
          for (uint j = 1; j < 2u; j++) {
            products += c[j] * v[j];
          }
          sums[r] += products * factor.x;
          sums[r].x += total * factor.y;
        }
      }
    }
    const float scale = metal::precise::rsqrt(simd_sum(sum4(squares)) * 0.00390625f + 9.99999975e-06f);
    // Lane r keeps row r, so that the epilogue runs in parallel.
    float y = 0.0f;
  #pragma unroll
    for (uint r = 0; r < 1u; r++) {
      const float total = simd_sum(sum4(sums[r]));
      y = lane == r ? total : y;
    }
    const uint o = first + lane;
    if (lane < 1u && o < end) {
      y *= scale;
      shared_gate[t] = y;
    }
    return;
  }
  const uint part = (threadgroup_position_in_grid.x - 5u);
  const uint slot = part / 2u;
  const uint group = part % 2u;
  // One simdgroup stores the whole choice of its token; others need it up to their expert.
  const bool stores = part == 0 && simdgroup_index_in_threadgroup == 0;
  const uint rounds = stores ? 3u : slot + 1u;
  int expert_of_slot = 0;
  {
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
  for (uint rank = 0; rank < rounds; rank++) {
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
    expert_of_slot = rank == slot ? number : expert_of_slot;
    if (stores && lane == 0) {
      experts[(ulong)t * 3u + rank] = number;
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
        if (rank < 3u) {
          weights[(ulong)t * 3u + rank] = kept[j] / sum * 2.5f;
        }
      }
    }
  }
  const uint expert_row = (uint)expert_of_slot * 256u;
  const uint of_all = group * 162u;
  const uint end = 256u;
  const uint first = of_all + simdgroup_index_in_threadgroup / 2u * 1u;
  {
    uint piece_of[1];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint own = lane + 32u * share + step * 64u;
      piece_of[step] = min(own, 15u);
    }
    Raw_q4_k raw[1][2];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
#pragma unroll
      for (uint r = 0; r < 1u; r++) {
        const uint row = expert_row + min(first + r, end - 1);
        raw[step][r] = raw_q4_k(Row_q4_k{weight + (ulong)row * 144u}, piece_of[step]);
        raw[step][1 + r] = raw_q4_k(Row_q4_k{weight + (ulong)(row + 10240u) * 144u}, piece_of[step]);
      }
    }
    float4 of_x[1][2][2];
    float total[1][2];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint column = piece_of[step] / 4u * 64u + piece_of[step] % 4u * 8u;
      const bool has = lane + 32u * share + step * 64u < 16u;
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        float4 v[2];
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          v[j] = float4(0.0f);
        }
        if (has) {
        float4 n[2];
        load_f32_8(norm + column + run * 32u, n);

        load_bf16_8(input + column + run * 32u, v);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          squares += v[j] * v[j];
          v[j] *= n[j];
        }
        }
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          of_x[step][run][j] = v[j];
        }
        total[step][run] = sum4(of_x[step][run][0]) + sum4(of_x[step][run][1]);
      }
    }
#pragma unroll 1
    for (uint pass = 0; pass < 81u; pass++) {
      float sums[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        sums[r] = 0.0f;
#pragma unroll
        for (uint step = 0; step < 1u; step++) {
#pragma unroll
          for (uint run = 0; run < 2u; run++) {
            float4 c[2];
            codes_q4_k(raw[step][r], run, c);
            float4 products = c[0] * of_x[step][run][0];
#pragma unroll
            for (uint j = 1; j < 2u; j++) {
              products += c[j] * of_x[step][run][j];
            }
            const float2 factor = scale_q4_k(raw[step][r], run);
            sums[r] += sum4(products) * factor.x + total[step][run] * factor.y;
          }
        }
      }
      if (pass + 1 < 81u) {
  #pragma unroll
      for (uint step = 0; step < 1u; step++) {
  #pragma unroll
        for (uint r = 0; r < 1u; r++) {
          const uint row = expert_row + min(first + (pass + 1) * 2u + r, end - 1);
          raw[step][r] = raw_q4_k(Row_q4_k{weight + (ulong)row * 144u}, piece_of[step]);
          raw[step][1 + r] = raw_q4_k(Row_q4_k{weight + (ulong)(row + 10240u) * 144u}, piece_of[step]);
        }
      }
      }
      // Half of the lanes keep half of the rows, and so on: in the end, lane l has row l / 16.
#pragma unroll
      for (uint r = 0; r < 1u; r++) {
        const float given = (lane & 16u) ? sums[r] : sums[r + 1];
        const float kept = (lane & 16u) ? sums[r + 1] : sums[r];
        sums[r] = kept + simd_shuffle_xor(given, 16);
      }
      sums[0] += simd_shuffle_xor(sums[0], 8);
      sums[0] += simd_shuffle_xor(sums[0], 4);
      sums[0] += simd_shuffle_xor(sums[0], 2);
      sums[0] += simd_shuffle_xor(sums[0], 1);
      if (lane % 16u == 0) {
        shares[(pass * 4u + simdgroup_index_in_threadgroup) * 2u + lane / 16u] = sums[0];
      }
    }
  }
  {
    const float own = simd_sum(sum4(squares));
    if (lane == 0) {
      squares_of[simdgroup_index_in_threadgroup] = own;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float of_row = 0.0f;
#pragma unroll
  for (uint s = 0; s < 2u; s++) {
    of_row += squares_of[s];
  }
  const float scale = metal::precise::rsqrt(of_row * 0.00390625f + 9.99999975e-06f);

  for (uint at = thread_index_in_threadgroup; at < 162u && of_all + at < end; at += 128u) {
    const uint o = of_all + at;
    const uint in_tile = at % 2u;
    const uint of_rows = ((at / 2u) * 4u + in_tile / 1u * 2u) * 2u + in_tile % 1u;
    float y = 0.0f;
    float up = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      const uint at_sum = of_rows + s * 2u;
      y += shares[at_sum];
      up += shares[at_sum + 1u];
    }
    const ulong place = ((ulong)t * 3u + slot) * 256u + o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (bfloat16_t)y;
  }
}
