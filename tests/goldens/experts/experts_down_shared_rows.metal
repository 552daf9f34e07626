// experts_down_shared_rows_111d49cd
// small spec of a test
//
// out = residual + sum of weights * (x @ weight[expert].T + bias[expert]), over the 3 experts that a token's router chose.
// To the sum is added sigmoid(shared_gate) * (shared_x @ shared.T), of the shared expert.
// A threadgroup has 4 tokens, one of each simdgroup. They share a read of the shared expert's weight: a simdgroup has
// some of its columns, for all of them.
// A simdgroup makes 4 outputs of a token, one expert after another, and sums them in registers.
// Grid: (12, ceil(tokens / 4)) threadgroups of 4 simdgroups.
//   x          [tokens, 3 * 64] f32
//   weight     [1920, 64] f32
//   experts    [tokens, 3] i32
//   weights    [tokens, 3] f32
//   shared_x   [tokens, 40] f32
//   shared_gate [tokens, 1] f32
//   residual   [tokens, 48] f32
//   out        [tokens, 48] f32
//   bias       [1920] f32
//   shared     [48, 40] f32
//   dims       [8] u32: tokens, seqs, rows, tiles
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


// ---- kernel
[[kernel]] void experts_down_shared_rows_111d49cd(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device int32_t* experts [[buffer(2)]],
  const device float* weights [[buffer(3)]],
  const device float* shared_x [[buffer(4)]],
  const device float* shared [[buffer(5)]],
  const device float* shared_gate [[buffer(6)]],
  const device float* bias [[buffer(7)]],
  const device float* residual [[buffer(8)]],
  const device uint32_t* dims [[buffer(9)]],
  device float* out [[buffer(10)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  MLXR_THREADGROUP(float, products, 64);
  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 4u;
  const uint share = simdgroup_index_in_threadgroup;
  const uint token = first_row + share;
  const uint first = threadgroup_position_in_grid.x * 4u;
  const uint end = 48u;
  {
    const uint of_all = first;
    // Tokens past the end repeat the last one and are not stored.
    const device float* input[4];
#pragma unroll
    for (uint t = 0; t < 4u; t++) {
      input[t] = shared_x + (ulong)min(first_row + t, count - 1) * 40u;
    }
    {
      const uint first = of_all + 0u;
      float sums[4][2];
    #pragma unroll
      for (uint t = 0; t < 4u; t++) {
    #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          sums[t][r] = 0.0f;
        }
      }
      Row_f32 w[2];
    #pragma unroll
      for (uint r = 0; r < 2u; r++) {
        const uint row = first + r;
        w[r] = Row_f32{shared + (ulong)row * 40u};
      }
      for (uint piece = lane + 32 * share; piece < 10u; piece += 128) {
        const uint column = piece * 4u;
        Raw_f32 raw[2];
    #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          raw[r] = raw_f32(w[r], piece);
        }
    #pragma unroll
        for (uint run = 0; run < 1u; run++) {
          float4 u[2][1];
    #pragma unroll
          for (uint r = 0; r < 2u; r++) {
            codes_f32(raw[r], run, u[r]);
          }
    #pragma unroll
          for (uint t = 0; t < 4u; t++) {
            float4 v[1];
            load_f32_4(input[t] + column + run * 4u, v);

    #pragma unroll
            for (uint r = 0; r < 2u; r++) {
    #pragma unroll
              for (uint j = 0; j < 1u; j++) {
                sums[t][r] += sum4(u[r][j] * v[j]);
              }
            }
          }
        }
      }
      // Lane t * 2 + r keeps output r of row t.
      float y = 0.0f;
    #pragma unroll
      for (uint t = 0; t < 4u; t++) {
    #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float total = simd_sum(sums[t][r]);
          y = lane == t * 2u + r ? total : y;
        }
      }
      const uint row = first_row + lane / 2u;
      const uint o = first + lane % 2u;
      if (lane < 8u) {
        products[((row - first_row) * 4u + share) * 4u + o - of_all] = y;
      }
    }
    {
      const uint first = of_all + 2u;
      float sums[4][2];
    #pragma unroll
      for (uint t = 0; t < 4u; t++) {
    #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          sums[t][r] = 0.0f;
        }
      }
      Row_f32 w[2];
    #pragma unroll
      for (uint r = 0; r < 2u; r++) {
        const uint row = first + r;
        w[r] = Row_f32{shared + (ulong)row * 40u};
      }
      for (uint piece = lane + 32 * share; piece < 10u; piece += 128) {
        const uint column = piece * 4u;
        Raw_f32 raw[2];
    #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          raw[r] = raw_f32(w[r], piece);
        }
    #pragma unroll
        for (uint run = 0; run < 1u; run++) {
          float4 u[2][1];
    #pragma unroll
          for (uint r = 0; r < 2u; r++) {
            codes_f32(raw[r], run, u[r]);
          }
    #pragma unroll
          for (uint t = 0; t < 4u; t++) {
            float4 v[1];
            load_f32_4(input[t] + column + run * 4u, v);

    #pragma unroll
            for (uint r = 0; r < 2u; r++) {
    #pragma unroll
              for (uint j = 0; j < 1u; j++) {
                sums[t][r] += sum4(u[r][j] * v[j]);
              }
            }
          }
        }
      }
      // Lane t * 2 + r keeps output r of row t.
      float y = 0.0f;
    #pragma unroll
      for (uint t = 0; t < 4u; t++) {
    #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float total = simd_sum(sums[t][r]);
          y = lane == t * 2u + r ? total : y;
        }
      }
      const uint row = first_row + lane / 2u;
      const uint o = first + lane % 2u;
      if (lane < 8u) {
        products[((row - first_row) * 4u + share) * 4u + o - of_all] = y;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (token >= count) {
    return;
  }
  float4 mixed[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    mixed[r] = float4(0.0f);
  }
  for (uint slot = 0; slot < 3u; slot++) {
    const uint chosen = token * 3u + slot;
    const uint expert_row = (uint)experts[chosen] * 48u;
    const device float* input = x + (ulong)chosen * 64u;
    float4 sums[4];
  #pragma unroll
    for (uint r = 0; r < 4u; r++) {
      sums[r] = float4(0.0f);
    }

    Row_f32 w[4];
  #pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint row = expert_row + first + r;
      w[r] = Row_f32{weight + (ulong)row * 64u};
    }
    // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
    Raw_f32 raws[1][4];
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
  #pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 15u));
      }
    }
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint piece = lane + step * 32u;
      if (piece >= 16u) {
        break;
      }
      const thread Raw_f32* raw = raws[step];
      const uint column = piece * 4u;
  #pragma unroll
      for (uint run = 0; run < 1u; run++) {
        float4 v[1];
        load_f32_4(input + column + run * 4u, v);

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
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      mixed[r] += sums[r] * weights[chosen];
    }
  }
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const float total = simd_sum(sum4(mixed[r]));
    y = lane == r ? total : y;
  }
  const uint o = first + lane;
  if (lane < 4u && o < end) {
    float of_shared = 0.0f;
#pragma unroll
    for (uint s = 0; s < 4u; s++) {
      of_shared += products[(share * 4u + s) * 4u + lane];
    }
    y += of_shared / (1.0f + metal::precise::exp(-(float)shared_gate[token]));
    for (uint slot = 0; slot < 3u; slot++) {
      const uint chosen = token * 3u + slot;
      y += weights[chosen] * (float)bias[(uint)experts[chosen] * 48u + o];
    }
    const ulong place = (ulong)token * 48u + o;
    y += (float)residual[place];
    out[place] = (float)y;
  }
}
