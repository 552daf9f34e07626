// rotate_queries_6d0cf26e
// small spec of a test
//
// Queries rotated, for MLX's attention. A thread has two neighbouring elements of every head that it takes.
// Grid: one threadgroup of 128 threads a token.
//   qkv        [tokens, 384] bf16: 8 query, 2 key, 2 value heads of 32
//   positions  [tokens] i32
//   queries    [tokens, 256] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
constant float rope_frequencies[16] = {
  1.0f, 0.351463318f, 0.079056941f, 0.0444569848f, 0.0250000004f, 0.0140585331f,
  0.00790569372f, 0.00444569858f, 0.00249999994f, 0.00140585331f, 0.000790569407f, 0.000444569858f,
  0.000250000012f, 0.000140585325f, 7.90569393e-05f, 4.44569851e-05f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 16u;
  const uint pair = first ? element : element - 16u;
  const uint partner = first ? element + 16u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle) * 1.13862944f;
  return Rotation{metal::precise::cos(angle) * 1.13862944f, first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
// ---- kernel
[[kernel]] void rotate_queries_6d0cf26e(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  device bfloat16_t* queries [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint t = threadgroup_position_in_grid.x;
  const uint element = thread_index_in_threadgroup % 16u * 2u;
  const int position = positions[t];
  const Rotation turns[2] = {rotation(element, position), rotation(element + 1u, position)};
  const device bfloat16_t* x = qkv + (ulong)t * 384u;
  device bfloat16_t* target = queries + (ulong)t * 256u + element;
  const uint first = thread_index_in_threadgroup / 16u;
  for (uint head = first; head < 8u; head += 8u) {
    const device bfloat16_t* source = x + head * 32u;
    *(device uint*)(target + head * 32u) = pack_bf16(
        rotate(source, element, turns[0]),
        rotate(source, element + 1u, turns[1]));
  }
}
