// routed_experts_2efed7b8
// small spec of a test
//
// The choice of 3 experts of 40 by a router's logits, and the projections of a token by them: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// As the one-row projection, with the rows of one expert. Experts that were not chosen are not read.
// Grid: (42, tokens) threadgroups of 2 simdgroups.
//   x          [tokens, 48] f32
//   weight     [4480, 48] f32
//   norm       [48] f32
//   experts    [tokens, 3] i32
//   logits     [tokens, 40] f32: the router's
//   selection_bias [40] f32: added for the choice only
//   weights    [tokens, 3] f32
//   out        [tokens, 3 * 56] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }

inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }


// ---- kernel
[[kernel]] void routed_experts_2efed7b8(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* logits [[buffer(2)]],
  const device float* selection_bias [[buffer(3)]],
  const device float* norm [[buffer(4)]],
  device float* out [[buffer(5)]],
  device int32_t* experts [[buffer(6)]],
  device float* weights [[buffer(7)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint t = threadgroup_position_in_grid.y;
  const device float* input = x + (ulong)t * 48u;
  const uint part = threadgroup_position_in_grid.x;
  const uint slot = part / 14u;
  const uint group = part % 14u;
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
    // The biased scores, by which experts are chosen.
    float own[2];
  #pragma unroll
    for (uint i = 0; i < 2u; i++) {
      const uint expert = lane + 32u * i;
      const float score = 1.0f / (1.0f + metal::precise::exp(-logit[i]));
      const float biased = score + (float)selection_bias[min(expert, 39u)];
      own[i] = metal::isnan(biased) ? -INFINITY : biased;
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
    const uint bits = as_type<uint>(own[i] == 0.0f ? 0.0f : own[i]);
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
    float value = 0.0f;
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      left[i] = winner == lane + 32u * i ? 0u : left[i];
      value = winner == lane + 32u * i ? logit[i] : value;
    }
    const int number = (int)winner;
    expert_of_slot = rank == slot ? number : expert_of_slot;
    if (stores && lane == 0) {
      experts[(ulong)t * 3u + rank] = number;
    }
    value = simd_shuffle(value, (ushort)(winner % 32u));
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      kept[j] = rank == lane + 32u * j ? value : kept[j];
    }
  }
    if (stores) {
      float sum = 0.0f;
    #pragma unroll
      for (uint j = 0; j < 1u; j++) {
        kept[j] = 1.0f / (1.0f + metal::precise::exp(-kept[j]));
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
  const uint first = (group * 2u + simdgroup_index_in_threadgroup) * 2u;
  const uint end = 56u;

  if (first >= end) {
    return;
  }
  const uint expert_row = (uint)expert_of_slot * 56u;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }
  float4 squares = float4(0.0f);

  Row_f32 w[4];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = expert_row + first + r;
    w[r] = Row_f32{weight + (ulong)row * 48u};
    w[2 + r] = Row_f32{weight + (ulong)(row + 2240u) * 48u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_f32 raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 11u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 12u) {
      break;
    }
    const thread Raw_f32* raw = raws[step];
    const uint column = piece * 4u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[1];
      float4 n[1];
      load_f32_4(norm + column + run * 4u, n);

      load_f32_4(input + column + run * 4u, v);
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        squares += v[j] * v[j];
        v[j] *= n[j];
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[1];
        codes_f32(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  const float scale = metal::precise::rsqrt(simd_sum(sum4(squares)) * 0.020833334f + 9.99999975e-06f);
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
  float up = 0.0f;
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
    const float total_up = simd_sum(sum4(sums[2 + r]));
    up = lane == r ? total_up : up;
  }
  const uint o = first + lane;
  if (lane < 2u && o < end) {
    const ulong place = ((ulong)t * 3u + slot) * 56u + o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (float)y;
  }
}
