// gate_up_mma64_5ae57dbd
// small spec of a test
//
// Projection of several rows by matrix instructions: out = silu(x @ gate.T) * (x @ up.T), weight = [gate; up].
// A threadgroup multiplies 64 rows of the weight by 64 rows of x; simdgroup s takes blocks s, s + 4 ... of 32 columns. A lane
// reads 16 bytes of rows g, g + 8 ... of both, from column 8 t on. That permutes the columns of both alike, which changes no
// product.
// Then the simdgroups' sums are added up, 8 rows of x at a time.
// Grid: (16, ceil(tokens / 64)) threadgroups of 4 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [1024, 256] bf16
//   out        [tokens, 512] bf16
//   dims       [8] u32: tokens, seqs, rows, tiles
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
// The bf16 numbers in the lower half of a pair, and in the upper.
inline float2 floats_of(uint pair) {
  return as_type<float2>(uint2(pair << 16, pair & 0xffff0000u));
}
#ifndef MLXR_MMA
inline float pair_product(uint a, uint b, float sum) {
  const float2 x = floats_of(a), y = floats_of(b);
  return sum + (x.x * y.x + x.y * y.y);
}
inline float4 mma_bf16(uint4 a, uint2 b, float4 c, uint lane) {
  for (uint t = 0; t < 4; t++) {
    const uint row = lane / 4 * 4 + t, column = lane % 4 * 8 + t;
    const uint4 w = uint4(simd_shuffle(a.x, row), simd_shuffle(a.y, row), simd_shuffle(a.z, row), simd_shuffle(a.w, row));
    const uint2 even = uint2(simd_shuffle(b.x, column), simd_shuffle(b.y, column));
    const uint2 odd = uint2(simd_shuffle(b.x, column + 4), simd_shuffle(b.y, column + 4));
    c.x = pair_product(w.z, even.y, pair_product(w.x, even.x, c.x));
    c.y = pair_product(w.z, odd.y, pair_product(w.x, odd.x, c.y));
    c.z = pair_product(w.w, even.y, pair_product(w.y, even.x, c.z));
    c.w = pair_product(w.w, odd.y, pair_product(w.y, odd.x, c.w));
  }
  return c;
}
#endif
inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

// ---- kernel
[[kernel]] void gate_up_mma64_5ae57dbd(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, share = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint own = threadgroup_position_in_grid.x * 32u;
  // The last threadgroup's outputs end with the weight's; those before `own` are the previous threadgroup's.
  const uint first = own;
  const uint first_row = threadgroup_position_in_grid.y * 64u;
  const uint count = min(dims[0] - first_row, 64u);
  const device bfloat16_t* w = weight + (ulong)(first + group) * 256u + quad * 8;
  uint of_x[8];
#pragma unroll
  for (uint n = 0; n < 8u; n++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(n * 8 + group, count - 1);
    of_x[n] = row * 256u + quad * 8;
  }
  float4 sums[4][8];
#pragma unroll
  for (uint m = 0; m < 4u; m++) {
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      sums[m][n] = float4(0.0f);
    }
  }
  // Weights of two steps are in flight; steps past the end repeat the last one and are not multiplied.
  uint4 raw[2][8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const ulong row = (r % 4u) * 8 + r / 4u * 512ul;
    raw[0][r] = *(const device uint4*)(w + row * 256u + share * 32);
  }
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const ulong row = (r % 4u) * 8 + r / 4u * 512ul;
    raw[1][r] = *(const device uint4*)(w + row * 256u + min(share + 4, 7u) * 32);
  }
  MLXR_AWAIT_INPUTS()
  uint step = share;
  for (; step + 4 < 8u; step += 8u) {
    {
      uint4 b[8];
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        b[n] = *(const device uint4*)(x + of_x[n] + (step) * 32);
      }
#pragma unroll
      for (uint m = 0; m < 4u; m++) {
        const uint4 even = raw[0][2 * m], odd = raw[0][2 * m + 1];
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[m][n] = mma_bf16(uint4(even.x, odd.x, even.y, odd.y), b[n].xy, sums[m][n], lane);
        }
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[m][n] = mma_bf16(uint4(even.z, odd.z, even.w, odd.w), b[n].zw, sums[m][n], lane);
        }
      }
    }
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      const ulong row = (r % 4u) * 8 + r / 4u * 512ul;
      raw[0][r] = *(const device uint4*)(w + row * 256u + min(step + 8, 7u) * 32);
    }
    {
      uint4 b[8];
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        b[n] = *(const device uint4*)(x + of_x[n] + (step + 4) * 32);
      }
#pragma unroll
      for (uint m = 0; m < 4u; m++) {
        const uint4 even = raw[1][2 * m], odd = raw[1][2 * m + 1];
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[m][n] = mma_bf16(uint4(even.x, odd.x, even.y, odd.y), b[n].xy, sums[m][n], lane);
        }
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[m][n] = mma_bf16(uint4(even.z, odd.z, even.w, odd.w), b[n].zw, sums[m][n], lane);
        }
      }
    }
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      const ulong row = (r % 4u) * 8 + r / 4u * 512ul;
      raw[1][r] = *(const device uint4*)(w + row * 256u + min(step + 12, 7u) * 32);
    }
  }
  if (step < 8u) {
    {
      uint4 b[8];
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        b[n] = *(const device uint4*)(x + of_x[n] + (step) * 32);
      }
#pragma unroll
      for (uint m = 0; m < 4u; m++) {
        const uint4 even = raw[0][2 * m], odd = raw[0][2 * m + 1];
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[m][n] = mma_bf16(uint4(even.x, odd.x, even.y, odd.y), b[n].xy, sums[m][n], lane);
        }
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[m][n] = mma_bf16(uint4(even.z, odd.z, even.w, odd.w), b[n].zw, sums[m][n], lane);
        }
      }
    }
  }
  // Sums of each simdgroup: 8 rows of x, 68 numbers apart, so that lanes write to different banks.
  MLXR_THREADGROUP(float, shares, 2176);
#pragma unroll
  for (uint n = 0; n < 8u; n++) {
    if (n * 8 >= count) {
      break;
    }
    threadgroup float* mine = shares + share * 544u + quad * 136u + group;
#pragma unroll
    for (uint m = 0; m < 4u; m++) {
      mine[m * 16] = sums[m][n].x;
      mine[m * 16 + 68] = sums[m][n].y;
      mine[m * 16 + 8] = sums[m][n].z;
      mine[m * 16 + 76] = sums[m][n].w;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 256u; i += 128u) {
      const uint column = i / 32u, row = first_row + n * 8 + column, o = first + i % 32u;
      const threadgroup float* of_row = shares + column * 68u + i % 32u;
      float y = 0.0f;
      float up = 0.0f;
#pragma unroll
      for (uint s = 0; s < 4u; s++) {
        y += of_row[s * 544u];
        up += of_row[s * 544u + 32u];
      }
      if (n * 8 + column < count) {
        const ulong place = (ulong)row * 512u + o;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
