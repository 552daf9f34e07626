// routed_experts_shared_fcfbd563
// small spec of a test
//
// The choice of 3 experts of 40 by a router's logits, and the projections of a token by them: out = silu(rms_norm(x) @ gate.T + bias) * (rms_norm(x) @ up.T + bias), weight = [gate; up].
// A shared expert and its gate, with 80 rows: the same, with its own weight.
// As the one-row projection, with the rows of one expert. Experts that were not chosen are not read.
// Grid: (59, tokens) threadgroups of 2 simdgroups; of each token first 11 of the shared expert.
//   x          [tokens, 48] f32
//   weight     [5120, 48] f32
//   norm       [48] f32
//   experts    [tokens, 3] i32
//   logits     [tokens, 40] f32: the router's
//   gate_weight [1, 48] f32
//   weights    [tokens, 3] f32
//   out        [tokens, 3 * 64] f32
//   shared_out [tokens, 40] f32
//   shared_gate [tokens, 1] f32
//   bias       [5120] f32
//   shared     [80, 48] f32
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
[[kernel]] void routed_experts_shared_fcfbd563(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* logits [[buffer(2)]],
  const device float* shared [[buffer(3)]],
  const device float* gate_weight [[buffer(4)]],
  const device float* norm [[buffer(5)]],
  const device float* bias [[buffer(6)]],
  device float* out [[buffer(7)]],
  device int32_t* experts [[buffer(8)]],
  device float* weights [[buffer(9)]],
  device float* shared_out [[buffer(10)]],
  device float* shared_gate [[buffer(11)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint t = threadgroup_position_in_grid.y;
  const device float* input = x + (ulong)t * 48u;
  if (threadgroup_position_in_grid.x < 10u) {
    const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 2u;
    const uint end = 40u;

    if (first >= end) {
      return;
    }
    float4 sums[4];
  #pragma unroll
    for (uint r = 0; r < 4u; r++) {
      sums[r] = float4(0.0f);
    }
    float4 squares = float4(0.0f);

    Row_f32 w[4];
  #pragma unroll
    for (uint r = 0; r < 2u; r++) {
      const uint row = first + r;
      w[r] = Row_f32{shared + (ulong)row * 48u};
      w[2 + r] = Row_f32{shared + (ulong)(row + 40u) * 48u};
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
      y *= scale;
      up *= scale;
      y = activate(y) * up;
      shared_out[(ulong)t * 40u + o] = (float)y;
    }
    return;
  }
  if (threadgroup_position_in_grid.x == 10u) {
    const uint first = ((threadgroup_position_in_grid.x - 10u) * 2u + simdgroup_index_in_threadgroup) * 1u;
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

    Row_f32 w[1];
  #pragma unroll
    for (uint r = 0; r < 1u; r++) {
      const uint row = first + r;
      w[r] = Row_f32{gate_weight + (ulong)row * 48u};
    }
    // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
    Raw_f32 raws[1][1];
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
  #pragma unroll
      for (uint r = 0; r < 1u; r++) {
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
        for (uint r = 0; r < 1u; r++) {
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
  const uint part = (threadgroup_position_in_grid.x - 11u);
  const uint slot = part / 16u;
  const uint group = part % 16u;
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
      float largest = kept[0];
    #pragma unroll
      for (uint j = 1; j < 1u; j++) {
        largest = max(largest, kept[j]);
      }
      largest = simd_max(largest);
      float sum = 0.0f;
    #pragma unroll
      for (uint j = 0; j < 1u; j++) {
        kept[j] = metal::precise::exp(kept[j] - largest);
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
  const uint end = 64u;

  if (first >= end) {
    return;
  }
  const uint expert_row = (uint)expert_of_slot * 64u;
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
    w[2 + r] = Row_f32{weight + (ulong)(row + 2560u) * 48u};
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
    const ulong place = ((ulong)t * 3u + slot) * 64u + o;
    y *= scale;
    y += (float)bias[expert_row + o];
    up *= scale;
    up += (float)bias[expert_row + o + 2560u];
    y = activate(y) * up;
    out[place] = (float)y;
  }
}
