// latent_write_785a9609
// small spec of a test
//
// The row of each token, [norm(latent) | rope(key)], goes to the token's slot.
// A simdgroup makes a row: its lanes hold every 32nd element.
// The arena is written in place through its const input; `token` orders that write against every other access.
// Grid: one threadgroup of 32 threads a token.
//   x          [tokens, 328] f32: the latent from column 240 on, 72, then the key, 16
//   kv_norm    [72] f32
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 16 + offset; -1 for padding tokens
//   latent_arena  [3, 1, 16, 1, 92] q8, written
//     a row: 88 int8 numbers and their f32 scale; number * scale is the element
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
constant float rope_frequencies[8] = {
  1.0f, 0.23717083f, 0.0500000007f, 0.00790569372f, 0.00249999994f, 0.000790569407f,
  0.000250000012f, 7.90569393e-05f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = (element & 1u) == 0u;
  const uint pair = element >> 1;
  const uint partner = element ^ 1u;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle) * 1.13862944f;
  return Rotation{metal::precise::cos(angle) * 1.13862944f, first ? -sine : sine, partner};
}

inline float rotate(const device float* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
// 1 / rms of n elements, by the lanes of a simdgroup.
inline float inverse_rms(const device float* x, uint n, float inverse, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < n; i += 32) {
    squares += (float)x[i] * (float)x[i];
  }
  return metal::precise::rsqrt(simd_sum(squares) * inverse + 0.00999999978f);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 92u;
}
// ---- kernel
[[kernel]] void latent_write_785a9609(
  const device float* x [[buffer(0)]],
  const device float* kv_norm [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* slots [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device int8_t* latent_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device uint32_t* token_out [[buffer(7)]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint t = threadgroup_position_in_grid.x;
  const uint lane = thread_index_in_simdgroup;
  const device float* own = x + (ulong)t * 328u;
  if (slots[t] < 0) {
    return;
  }
  const uint slot = (uint)slots[t];
  const device float* latent = own + 240u;
  const device float* key = latent + 72u;
  const float of_latent = inverse_rms(latent, 72u, 0.013888889f, lane);
  float row[3];
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    const uint element = lane + 32u * i;
    row[i] = 0.0f;
    if (element < 72u) {
      row[i] = (float)latent[element] * of_latent * (float)kv_norm[element];
    } else if (element < 88u) {
      row[i] = rotate(key, element - 72u, rotation(element - 72u, positions[t]));
    }
  }
  float largest_of_row = 0.0f;
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    largest_of_row = max(largest_of_row, q8_magnitude(row[i]));
  }
  const float row_scale = q8_scale(simd_max(largest_of_row));

  device int8_t* target = const_cast<device int8_t*>(latent_arena) +
      arena_row(slot / 16u, layer[0], slot % 16u);
  if (lane == 0) {
    *(device float*)(target + 88) = row_scale;
  }
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    const uint element = lane + 32u * i;
    if (element < 88u) {
      target[element] = q8_number(row[i], row_scale);
    }
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
