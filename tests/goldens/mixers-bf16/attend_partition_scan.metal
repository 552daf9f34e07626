// attend_partition_scan_c634ea7b
// small spec of a test
//
// Two kinds of threadgroups. Of each sequence the first 6 attend; the others scan.
// Grid: (6 + 8, seqs) threadgroups of 128 threads.
// What is read and written is said below; the scan's own have `scan_` before their names.
//
// ---- Threadgroups that attend; their grid is folded into one axis
//
// Decode: RoPE, cache write and attention of one new token of each sequence, in one launch, by partitions of the context.
// One threadgroup serves one KV head of one sequence and all 3 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 16 keys at a time, 2 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Split-KV: the context is cut into partitions of equal length, the smallest multiple of 16 that gives at
// most 3 of them; threadgroups past the last one do nothing. The partition that holds the new token owns its slot.
// Results are partial (sum, maximum, weighted values); the reduction kernel merges them.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (2 KV heads, seqs, 3 partitions) threadgroups of 4 simdgroups.
//   qkv        [seqs, 680] bf16: 6 query, 2 key, 2 value heads of 40
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 16 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [12, 2, 16, 2, 40] bf16, the new token's slot written in place
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   partial    [seqs, 6, 3, 40] f32
//   stats      [seqs, 6, 3, 4] f32: maximum (base 2), sum, unused (MLX wants 8 elements or more)
//
// ---- Threadgroups that scan
//
// The scan of Mamba-2: by head S = decay S + (dt x) B^T, out = S C + d x, times silu(gate).
// 8 lanes have a row of a head's state in registers, and walk through the tokens of a sequence.
// Grid: (8 heads x 1 parts of 16 rows, seqs) threadgroups of 128 threads.
//   x      [tokens, 680] bf16: from column 496 on 176 channels, which are 8 heads of 12, then B and C, 1 groups of 40 each
//   weight [176, 3] f32
//   conv_states  [slots, 2, 176, 2] f32, written: the last inputs
//   dt     [tokens, 680] bf16: from column 672 on a number of each head
//   a, d, dt_bias  [8] f32
//   gate   [tokens, 680] bf16: from column 400 on heads as in x
//   query_start  [seqs + 1] i32: first token of each sequence
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; those that are written, the last token's first
//   layer        [8] u32: the layer's place in the store first
//   states       [slots, 2, 8, 12, 40] f32, written
//   token, token_out  [8] u32
//   out    [tokens, 96] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#define MLXR_PART_ARRAY(T, name, count)                                     \
  threadgroup T* const name = (threadgroup T*)(mlxr_memory + mlxr_memory_at); \
  mlxr_memory_at += (sizeof(T) * (count) + 15u) / 16u
namespace attending {
#ifndef MLXR_AWAIT_INPUTS  // a decode step of one kernel waits there for what other threadgroups make
#define MLXR_AWAIT_INPUTS()
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
constant float rope_frequencies[20] = {
  1.0f, 0.630957365f, 0.398107171f, 0.251188636f, 0.158489317f, 0.100000001f,
  0.0630957335f, 0.0398107171f, 0.0251188651f, 0.0158489328f, 0.00999999978f, 0.00630957354f,
  0.00398107152f, 0.00251188641f, 0.00158489321f, 0.00100000005f, 0.000630957366f, 0.000398107164f,
  0.000251188641f, 0.000158489318f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 20u;
  const uint pair = first ? element : element - 20u;
  const uint partner = first ? element + 20u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float2 turn_of(uint pair, int position) {
  const Rotation r = rotation(pair, position);
  return float2(r.cosine, -r.sine);
}
inline uint pair_of(uint element) {
  return element % 20u;
}
inline Rotation rotation_by(uint element, float2 turn) {
  const bool first = element < 20u;
  return Rotation{turn.x, first ? -turn.y : turn.y, first ? element + 20u : element - 20u};
}
inline Rotation rotation_in(const threadgroup float2* turns, uint element) {
  return rotation_by(element, turns[pair_of(element)]);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 2u + layer) * 16u + offset) * 80u;
}
#define LOWEST (-3.0e38f)
}  // namespace attending
namespace scanning {
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
inline float convolve(const device bfloat16_t* input, const device float* weight, const device float* bias,
                      const device float* past, device float* next, bool remembers, bool writes, uint channel) {
  const device float* w = weight + channel * 3u;
  const float newest = (float)input[channel];
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
  return silu(fma(w[2], newest, y));
}
}  // namespace scanning
// ---- kernel
[[kernel]] void attend_partition_scan_c634ea7b(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device bfloat16_t* k_arena [[buffer(5)]],
  const device bfloat16_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  const device bfloat16_t* scan_x [[buffer(8)]],
  const device bfloat16_t* scan_dt [[buffer(9)]],
  const device bfloat16_t* scan_gate [[buffer(10)]],
  const device float* scan_a [[buffer(11)]],
  const device float* scan_d [[buffer(12)]],
  const device float* scan_dt_bias [[buffer(13)]],
  const device float* scan_weight [[buffer(14)]],
  const device float* scan_conv_states [[buffer(15)]],
  const device float* scan_states [[buffer(16)]],
  const device int32_t* scan_query_start [[buffer(17)]],
  const device int32_t* scan_state_table [[buffer(18)]],
  device float* partial [[buffer(19)]],
  device float* stats [[buffer(20)]],
  device bfloat16_t* scan_out [[buffer(21)]],
  device uint32_t* token_out [[buffer(22)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  MLXR_THREADGROUP(uint4, mlxr_memory, 146);
  uint mlxr_memory_at = 0;
  uint3 mlxr_place = threadgroup_position_in_grid;
  if (mlxr_place.x < 6u) {
    using namespace attending;
    mlxr_place.z = mlxr_place.x / 2u;
    mlxr_place.x %= 2u;
    const uint lane = thread_index_in_simdgroup;
    const uint simd_gid = simdgroup_index_in_threadgroup;
    const uint kv_head = mlxr_place.x;
    const uint first_head = mlxr_place.x * 3u;
    const uint sequence = mlxr_place.y;
    const uint position = (uint)positions[sequence];
    const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
    const device bfloat16_t* input = qkv + (ulong)sequence * 680u;
    const uint partition = mlxr_place.z;
    const uint start = 0u;
    const uint length = (position - start) / 48u * 16u + 16u;
    const uint begin = start + partition * length;
    if (begin > position) {
      return;
    }
    const bool owner = position - begin < length;
    const uint end = min(begin + length, position);
    const uint key_in_group = lane / 2u;
    const uint part = lane % 2u;

    // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
    uint base[5];
  #pragma unroll
    for (uint i = 0; i < 5u; i++) {
      base[i] = (i / 1u * 2u + part) * 4u + i % 1u * 4u;
    }
    MLXR_PART_ARRAY(float2, turns, 20);
    for (uint i = thread_index_in_threadgroup; i < 20u; i += 128u) {
      turns[i] = turn_of(i, (int)position);
    }
    MLXR_AWAIT_INPUTS()
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 q[3][5];
    float4 values[3][5];
    float maximum[3];
    float total[3];
  #pragma unroll
    for (uint i = 0; i < 5u; i++) {
  #pragma unroll
      for (uint j = 0; j < 4; j++) {
        const Rotation r = rotation_in(turns, base[i] + j);
  #pragma unroll
        for (uint g = 0; g < 3u; g++) {
          const device bfloat16_t* head = input + (first_head + g) * 40u;
          q[g][i][j] = rotate(head, base[i] + j, r) * 0.22811012f;
        }
      }
    }
  #pragma unroll
    for (uint g = 0; g < 3u; g++) {
      maximum[g] = LOWEST;
      total[g] = 0.0f;
  #pragma unroll
      for (uint i = 0; i < 5u; i++) {
        values[g][i] = float4(0.0f);
      }
    }


    // The new token: rotated, stored and attended to from registers, by the simdgroup that has the fewest keys.
    if (owner && simd_gid == 3u) {
      device bfloat16_t* k_out = const_cast<device bfloat16_t*>(k_arena);
      device bfloat16_t* v_out = const_cast<device bfloat16_t*>(v_arena);
      const uint slot = (uint)slots[sequence];
      const ulong row =
          arena_row(slot / 16u, layer[0], slot % 16u) + kv_head * 40u;
      const device bfloat16_t* key = input + (6u + kv_head) * 40u;
      const device bfloat16_t* value = key + 80u;
      float score[3];
  #pragma unroll
      for (uint g = 0; g < 3u; g++) {
        score[g] = 0.0f;
      }
  #pragma unroll
      for (uint i = 0; i < 5u; i++) {
  #pragma unroll
        for (uint j = 0; j < 4; j++) {
          const uint element = base[i] + j;
          const bfloat16_t new_k = (bfloat16_t)rotate(key, element, rotation_in(turns, element));
          const bfloat16_t new_v = (bfloat16_t)(float)value[element];
          if (key_in_group == 0) {
            k_out[row + element] = new_k;
            v_out[row + element] = new_v;
          }
  #pragma unroll
          for (uint g = 0; g < 3u; g++) {
            score[g] += q[g][i][j] * (float)new_k;
            values[g][i][j] = key_in_group == 0 ? (float)new_v : 0.0f;
          }
        }
      }
  #pragma unroll
      for (uint g = 0; g < 3u; g++) {
  #pragma unroll
        for (ushort offset = 1; offset > 0; offset /= 2) {
          score[g] += simd_shuffle_xor(score[g], offset);
        }
        maximum[g] = key_in_group == 0 ? score[g] : LOWEST;
        total[g] = key_in_group == 0 ? 1.0f : 0.0f;
      }
    }

    for (uint first = begin + simd_gid * 16u; first < end; first += 64u) {
      // All loads of 1 key of a lane group, then their scores, then one change of maximum.
      bool valid[1];
      float4 key[1][5];
      float4 value[1][5];
  #pragma unroll
      for (uint u = 0; u < 1u; u++) {
        const uint wanted = first + u * 16u + key_in_group;
        valid[u] = wanted < end;
        const uint at = valid[u] ? wanted : first;
        const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 40u;
  #pragma unroll
        for (uint i = 0; i < 5u; i += 1u) {
          load_bf16_4(k_arena + row + base[i], key[u] + i);
          load_bf16_4(v_arena + row + base[i], value[u] + i);
        }
      }
  #pragma unroll
      for (uint g = 0; g < 3u; g++) {
        float score[1];
  #pragma unroll
        for (uint u = 0; u < 1u; u++) {
          float4 products = q[g][0] * key[u][0];
  #pragma unroll
          for (uint i = 1; i < 5u; i++) {
            products += q[g][i] * key[u][i];
          }
          score[u] = sum4(products);
        }
  #pragma unroll
        for (ushort offset = 1; offset > 0; offset /= 2) {
  #pragma unroll
          for (uint u = 0; u < 1u; u++) {
            score[u] += simd_shuffle_xor(score[u], offset);
          }
        }
        float largest = maximum[g];
  #pragma unroll
        for (uint u = 0; u < 1u; u++) {
          largest = valid[u] ? max(largest, score[u]) : largest;
        }
        const float keep = exp2(maximum[g] - largest);
        maximum[g] = largest;
        total[g] *= keep;
  #pragma unroll
        for (uint i = 0; i < 5u; i++) {
          values[g][i] *= keep;
        }
  #pragma unroll
        for (uint u = 0; u < 1u; u++) {
          const float p = valid[u] ? exp2(score[u] - largest) : 0.0f;
          total[g] += p;
  #pragma unroll
          for (uint i = 0; i < 5u; i++) {
            values[g][i] += value[u][i] * p;
          }
        }
      }
    }

    // Merge the lane groups of a simdgroup ...
  #pragma unroll
    for (uint g = 0; g < 3u; g++) {
  #pragma unroll
      for (ushort offset = 2; offset < 32; offset *= 2) {
        const float other = simd_shuffle_xor(maximum[g], offset);
        const float largest = max(maximum[g], other);
        const float mine = exp2(maximum[g] - largest);
        const float theirs = exp2(other - largest);
        maximum[g] = largest;
        total[g] = total[g] * mine + simd_shuffle_xor(total[g], offset) * theirs;
  #pragma unroll
        for (uint i = 0; i < 5u; i++) {
  #pragma unroll
          for (uint j = 0; j < 4; j++) {
            const float v = values[g][i][j];
            values[g][i][j] = v * mine + simd_shuffle_xor(v, offset) * theirs;
          }
        }
      }
    }
    // ... and the simdgroups, 3 query heads at a time.
    MLXR_PART_ARRAY(float, group_max, 12);
    MLXR_PART_ARRAY(float, group_total, 12);
    MLXR_PART_ARRAY(float, group_values, 480);
    if (lane == 0) {
  #pragma unroll
      for (uint g = 0; g < 3u; g++) {
        group_max[simd_gid * 3u + g] = maximum[g];
        group_total[simd_gid * 3u + g] = total[g];
      }
    }
    if (key_in_group == 0) {
  #pragma unroll
      for (uint g = 0; g < 3u; g++) {
  #pragma unroll
        for (uint i = 0; i < 5u; i++) {
  #pragma unroll
          for (uint j = 0; j < 4; j++) {
            group_values[(simd_gid * 3u + g) * 40u + base[i] + j] = values[0u + g][i][j];
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 120u; i += 128u) {
      const uint g = i / 40u;
      float largest = group_max[0u + g];
  #pragma unroll
      for (uint s = 1; s < 4u; s++) {
        largest = max(largest, group_max[s * 3u + 0u + g]);
      }
      float sum = 0.0f;
      float v = 0.0f;
  #pragma unroll
      for (uint s = 0; s < 4u; s++) {
        const float weight = exp2(group_max[s * 3u + 0u + g] - largest);
        sum += group_total[s * 3u + 0u + g] * weight;
        v += group_values[s * 120u + i] * weight;
      }
      const uint head = first_head + 0u + g;
      const ulong place = ((ulong)sequence * 6u + head) * 3u + partition;
      partial[place * 40u + i % 40u] = v;
      if (i % 40u == 0) {
        stats[place * 4] = largest;
        stats[place * 4 + 1] = sum;
      }
    }
    if (mlxr_place.x == 0 && sequence == 0 && partition == 0 && thread_index_in_threadgroup < 8) {
      token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
    }
} else {
    using namespace scanning;
    const device bfloat16_t* x = scan_x;
    const device bfloat16_t* dt = scan_dt;
    const device bfloat16_t* gate = scan_gate;
    const device float* a = scan_a;
    const device float* d = scan_d;
    const device float* dt_bias = scan_dt_bias;
    const device float* weight = scan_weight;
    const device float* conv_states = scan_conv_states;
    const device float* states = scan_states;
    const device int32_t* query_start = scan_query_start;
    const device int32_t* state_table = scan_state_table;
    device bfloat16_t* out = scan_out;
    mlxr_place.x -= 6u;
    MLXR_AWAIT_INPUTS()  // all threadgroups do, or none
    MLXR_PART_ARRAY(float, shared_b, 40);
    MLXR_PART_ARRAY(float, shared_c, 40);
    MLXR_PART_ARRAY(float, steps, 1);
    MLXR_PART_ARRAY(float, decays, 1);
    MLXR_PART_ARRAY(float, shared_x, 16);
    device float* kept = const_cast<device float*>(states);
    const uint sequence = mlxr_place.y;
    const uint head = mlxr_place.x / 1u;
    const uint group = head / 8u;
    const uint thread_id = thread_index_in_threadgroup;
    const uint lane = thread_id % 8u;
    const uint row = mlxr_place.x % 1u * 16u + thread_id / 8u;
    const bool there = row < 12u;
    const int columns = state_table[0];
    const device int* slots = state_table + 1 + (ulong)sequence * columns;
    const ulong element = (ulong)layer[0] * 3840u + (ulong)(head * 12u + row) * 40u;
    const int begin = query_start[sequence];
    const int end = query_start[sequence + 1];
    // Quad q of a lane: elements 4 (q * lanes + lane) and the next three.
    float4 state[2];
  #pragma unroll
    for (uint q = 0; q < 2u; q++) {
      const uint n = 4u * (q * 8u + lane);
      state[q] = float4(0.0f);
      if (there && slots[0] >= 0 && n < 40u) {
        state[q] = *(const device float4*)(kept + (ulong)slots[0] * 7680u + element + n);
      }
    }
    const ulong of_layer = (ulong)layer[0] * 352u;
    const bool remembers = slots[0] >= 0;
    const int goes_to = columns > 1 ? slots[1] : -1;
    const device float* past = conv_states + (remembers ? (ulong)slots[0] * 704u : 0ul) + of_layer;
    device float* next = const_cast<device float*>(conv_states) + (goes_to >= 0 ? (ulong)goes_to * 704u : 0ul) + of_layer;
    const float own_a = a[head];
    const float own_d = d[head];
    for (int first = begin; first < end; first += 1) {
      const uint count = (uint)min(1, end - first);
      const device bfloat16_t* input = x + (ulong)first * 680u + 496u;
      const bool first_of_group = mlxr_place.x % 8u == 0;
      for (uint i = thread_id; i < 80u; i += 128u) {
        const uint channel = (i < 40u ? 96u + i : 96u + i) + group * 40u;
        const float y = convolve(input, weight, weight, past, next, remembers, first_of_group && goes_to >= 0, channel);
        if (i < 40u) {
          shared_b[i] = y;
        } else {
          shared_c[i - 40u] = y;
        }
      }
      for (uint i = thread_id; i < 16u; i += 128u) {
        const uint of_head = mlxr_place.x % 1u * 16u + i;
        if (of_head >= 12u) {
          continue;
        }
        shared_x[i] = convolve(input, weight, weight, past, next, remembers, goes_to >= 0, head * 12u + of_head);
      }
      if (thread_id < count) {
        const float raw = (float)dt[((ulong)first + thread_id) * 680u + 672u + head] + dt_bias[head];
        const float step = min(max(softplus(raw), 0.00999999978f), 0.899999976f);
        steps[thread_id] = step;
        decays[thread_id] = metal::precise::exp(own_a * step);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint t = 0; t < count; t++) {
        const ulong token_of = (ulong)first + t;
        const uint column = head * 12u + row;
        const float own_x = there ? shared_x[thread_id / 8u] : 0.0f;
        const float scaled = own_x * steps[t];
        const float decay = decays[t];
        float total = 0.0f;
  #pragma unroll
        for (uint q = 0; q < 2u; q++) {
          const uint n = 4u * (q * 8u + lane);
          if (n >= 40u) {
            continue;
          }
          const threadgroup float* of_b = shared_b + t * 40u + n;
          const threadgroup float* of_c = shared_c + t * 40u + n;
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
          y *= silu((float)gate[token_of * 680u + 400u + column]);
          out[token_of * 96u + column] = (bfloat16_t)y;
        }
        const int left = end - first - (int)t;
        if (there && left < columns && slots[left] >= 0) {
  #pragma unroll
          for (uint q = 0; q < 2u; q++) {
            const uint n = 4u * (q * 8u + lane);
            if (n >= 40u) {
              continue;
            }
            *(device float4*)(kept + (ulong)slots[left] * 7680u + element + n) = state[q];
          }
        }
      }
    }
}
}
