// latent_write_519cc579
// small spec of a test
//
// The row of each token, [norm(latent) | rope(key)], goes to the token's slot.
// A simdgroup makes a row: its lanes hold every 32nd element.
// The arena is written in place through its const input; `token` orders that write against every other access.
// Grid: one threadgroup of 32 threads a token.
//   x          [tokens, 328] bf16: the latent from column 240 on, 72, then the key, 16
//   kv_norm    [72] f32
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 16 + offset; -1 for padding tokens
//   latent_arena  [12, 1, 16, 1, 88] bf16, written
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
struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  return Rotation{1.0f, 0.0f, element};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
// 1 / rms of n elements, by the lanes of a simdgroup.
inline float inverse_rms(const device bfloat16_t* x, uint n, float inverse, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < n; i += 32) {
    squares += (float)x[i] * (float)x[i];
  }
  return metal::precise::rsqrt(simd_sum(squares) * inverse + 9.99999975e-06f);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 88u;
}
// ---- kernel
[[kernel]] void latent_write_519cc579(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* kv_norm [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* slots [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device bfloat16_t* latent_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device uint32_t* token_out [[buffer(7)]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint t = threadgroup_position_in_grid.x;
  const uint lane = thread_index_in_simdgroup;
  const device bfloat16_t* own = x + (ulong)t * 328u;
  if (slots[t] < 0) {
    return;
  }
  const uint slot = (uint)slots[t];
  const device bfloat16_t* latent = own + 240u;
  const device bfloat16_t* key = latent + 72u;
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

  device bfloat16_t* target = const_cast<device bfloat16_t*>(latent_arena) +
      arena_row(slot / 16u, layer[0], slot % 16u);
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    const uint element = lane + 32u * i;
    if (element < 88u) {
      target[element] = (bfloat16_t)row[i];
    }
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
