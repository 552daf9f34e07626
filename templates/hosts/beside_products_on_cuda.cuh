// What stands around the matrix products of recorded prompts (see runtime/hosts/cuda/recorded_products.py): the norm of what
// is multiplied, and what follows the sums. Numbers have the type of MLX's arrays; all is computed in f32 and rounded where
// MLX rounds.
//
// mlxr_norm_TYPE: threadgroup i normalises row i. A null weight is 1, a null bias 0.
//   x                        [rows, stride]
//   weight, bias             [columns]
//   out                      [rows, columns]
//   columns, stride
//   epsilon                  the bits of an f32
//   is_layer                 whether the mean is subtracted
//   counter                  [1] u32, which the product after it wants to be 0, or null
// mlxr_finish_TYPE: a thread for each vector of results.
//   sums                     [rows, columns], or [rows, 2 * columns] with the gates first
//   bias                     as wide as sums, or null
//   gate                     [rows], or null
//   residual                 [rows, columns], or null
//   alpha_p, alpha_n         [1] each, of xielu
//   out                      [rows, columns]
//   rows, columns
//   kind                     of the activation, see below; is_gated; bounds, which of the next three there are, by bits
//   limit, out_cap, out_limit, out_scale, residual_scale: the bits of an f32
// mlxr_activate_TYPE: the same with an activation alone, for products of MLX's (see runtime/hosts/cuda/activate_sums.py).
//   sums, out
//   rows, columns, kind, is_gated, has_limit, limit
typedef unsigned short mlxr_u16;
typedef unsigned int mlxr_u32;
typedef unsigned long long mlxr_u64;
enum { NONE, SILU, GELU, GELU_TANH, RELU, RELU2, XIELU, SWIGLU_OAI };
enum { HAS_LIMIT = 1, HAS_OUT_CAP = 2, HAS_OUT_LIMIT = 4 };

struct mlxr_bf16 {
  mlxr_u16 bits;
};
struct mlxr_f16 {
  mlxr_u16 bits;
};
struct mlxr_f32 {
  float number;
};

__device__ inline float mlxr_read(mlxr_bf16 x) {
  return __uint_as_float((mlxr_u32)x.bits << 16);
}

__device__ inline float mlxr_read(mlxr_f16 x) {
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(x.bits));
  return number;
}

__device__ inline float mlxr_read(mlxr_f32 x) {
  return x.number;
}

__device__ inline void mlxr_write(mlxr_bf16& x, float number) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.bits) : "f"(number));
#else
  const mlxr_u32 bits = __float_as_uint(number);
  x.bits = number != number ? 0x7fff : (mlxr_u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
#endif
}

__device__ inline void mlxr_write(mlxr_f16& x, float number) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.bits) : "f"(number));
}

__device__ inline void mlxr_write(mlxr_f32& x, float number) {
  x.number = number;
}

template <typename T>
__device__ inline float mlxr_rounded(float number) {
  T x;
  mlxr_write(x, number);
  return mlxr_read(x);
}

__device__ inline float mlxr_number(mlxr_u64 bits) {
  return __uint_as_float((mlxr_u32)bits);
}

template <typename T, int N>
struct alignas(sizeof(T) * N) mlxr_vector {
  T at[N];
};

// The sum of all threads' numbers, of 256 threads.
__device__ inline float mlxr_total(float number, float* parts) {
  for (int distance = 16; distance; distance /= 2) {
    number += __shfl_xor_sync(0xffffffffu, number, distance);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = number;
  }
  __syncthreads();
  number = parts[threadIdx.x % 8];
  for (int distance = 4; distance; distance /= 2) {
    number += __shfl_xor_sync(0xffffffffu, number, distance);
  }
  return number;
}

// A row, of which a thread holds HELD vectors; where HELD is 0, it reads them again each time.
template <typename T, int N, int HELD>
__device__ inline void mlxr_norm(
    const T* x, const T* weight, const T* bias, T* out, mlxr_u32 columns, float epsilon, bool is_layer) {
  typedef mlxr_vector<T, N> vector;
  constexpr int UNROLLED = HELD ? HELD : 1;
  __shared__ float parts[8];
  const mlxr_u32 vectors = columns / N;
  vector held[UNROLLED], weights_held[UNROLLED];
#pragma unroll(UNROLLED)
  for (mlxr_u32 k = 0; k < HELD; k++) {
    const mlxr_u32 i = threadIdx.x + 256 * k;
    if (i < vectors) {
      held[k] = ((const vector*)x)[i];
      if (weight) {
        weights_held[k] = ((const vector*)weight)[i];
      }
    }
  }
  const mlxr_u32 steps = HELD ? HELD : (vectors + 255) / 256;
  float mean = 0, squares = 0;
  if (is_layer) {
#pragma unroll(UNROLLED)
    for (mlxr_u32 k = 0; k < steps; k++) {
      const mlxr_u32 i = threadIdx.x + 256 * k;
      if (i < vectors) {
        const vector some = HELD ? held[k] : ((const vector*)x)[i];
#pragma unroll
        for (int j = 0; j < N; j++) {
          mean += mlxr_read(some.at[j]);
        }
      }
    }
    mean = mlxr_total(mean, parts) / columns;
  }
#pragma unroll(UNROLLED)
  for (mlxr_u32 k = 0; k < steps; k++) {
    const mlxr_u32 i = threadIdx.x + 256 * k;
    if (i < vectors) {
      const vector some = HELD ? held[k] : ((const vector*)x)[i];
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float number = mlxr_read(some.at[j]) - mean;
        squares += number * number;
      }
    }
  }
  const float factor = rsqrtf(mlxr_total(squares, parts) / columns + epsilon);
#pragma unroll(UNROLLED)
  for (mlxr_u32 k = 0; k < steps; k++) {
    const mlxr_u32 i = threadIdx.x + 256 * k;
    if (i < vectors) {
      const vector some = HELD ? held[k] : ((const vector*)x)[i];
      vector weights, biases, results;
      if (weight) {
        weights = HELD ? weights_held[k] : ((const vector*)weight)[i];
      }
      if (bias) {
        biases = ((const vector*)bias)[i];
      }
#pragma unroll
      for (int j = 0; j < N; j++) {
        float number = mlxr_rounded<T>((mlxr_read(some.at[j]) - mean) * factor);
        number = weight ? mlxr_rounded<T>(mlxr_read(weights.at[j]) * number) : number;
        mlxr_write(results.at[j], bias ? number + mlxr_read(biases.at[j]) : number);
      }
      ((vector*)out)[i] = results;
    }
  }
}

__device__ inline float mlxr_sigmoid(float x) {
  const float small = 1 / (1 + expf(fabsf(x)));  // as MLX has it, to the last bit
  return x < 0 ? small : 1 - small;
}

// NaN stays, as with MLX: a broken product shall be seen.
__device__ inline float mlxr_at_least(float x, float low) {
  return x > low || x != x ? x : low;
}

__device__ inline float mlxr_at_most(float x, float high) {
  return x < high || x != x ? x : high;
}

__device__ inline float mlxr_softplus(float x) {
  return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

__device__ inline float mlxr_activated(float x, mlxr_u32 kind, float alpha_p, float alpha_n) {
  switch (kind) {
    case SILU:
      return x * mlxr_sigmoid(x);
    case GELU:
      return x * 0.5f * (1 + erff(x * 0.70710678118654752f));
    case GELU_TANH:
      return x * 0.5f * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case RELU:
      return mlxr_at_least(x, 0);
    case RELU2:
      return mlxr_at_least(x, 0) * mlxr_at_least(x, 0);
    case XIELU:
      return (x > 0 ? alpha_p * x * x : alpha_n * (expm1f(fminf(x, -1e-6f)) - x)) + 0.5f * x;
    default:
      return x;
  }
}

// An activation of gates alone, as most models have it: in the loop of mlxr_finish, which is not unrolled, vectors would lie
// in local memory. 512 rows of Llama-3-8B took 33 us so.
template <typename T, int N, int KIND>
__device__ inline void mlxr_gated(const T* sums, T* out, mlxr_u32 vectors, mlxr_u32 place) {
  typedef mlxr_vector<T, N> vector;
  const mlxr_u32 row = place / vectors;
  const vector* const own = (const vector*)sums + (mlxr_u64)row * vectors + place;
  const vector first = own[0], second = own[vectors];
  vector results;
#pragma unroll
  for (int j = 0; j < N; j++) {
    mlxr_write(results.at[j], mlxr_activated(mlxr_read(first.at[j]), KIND, 0, 0) * mlxr_read(second.at[j]));
  }
  ((vector*)out)[place] = results;
}

template <typename T, int N>
__device__ void mlxr_finish(
    const T* sums, const T* bias, const T* gate, const T* residual, const T* alpha_p, const T* alpha_n, T* out,
    mlxr_u32 rows, mlxr_u32 columns, mlxr_u32 kind, bool is_gated, mlxr_u32 bounds, float limit, float out_cap,
    float out_limit, float out_scale, float residual_scale) {
  typedef mlxr_vector<T, N> vector;
  const mlxr_u32 vectors = columns / N, place = blockIdx.x * 256 + threadIdx.x;
  if (place >= rows * vectors) {
    return;
  }
  if constexpr (N > 4) {
    if (is_gated && !bias && !gate && !residual && !bounds && out_scale == 1 && (kind == SILU || kind == GELU_TANH)) {
      kind == SILU ? mlxr_gated<T, N, SILU>(sums, out, vectors, place)
                   : mlxr_gated<T, N, GELU_TANH>(sums, out, vectors, place);
      return;
    }
  }
  const mlxr_u32 row = place / vectors, at = place % vectors;
  const float p = kind == XIELU ? mlxr_softplus(mlxr_read(alpha_p[0])) : 0;
  const float n = kind == XIELU ? 0.5f + mlxr_softplus(mlxr_read(alpha_n[0])) : 0;
  const vector* const own = (const vector*)sums + (mlxr_u64)row * vectors * (is_gated ? 2 : 1) + at;
  const float open = gate ? mlxr_sigmoid(mlxr_read(gate[row])) : 1;
  vector first = own[0], second, added, results;
  if (is_gated) {
    second = own[vectors];
  }
  if (residual) {
    added = ((const vector*)residual)[place];
  }
  for (int j = 0; j < N; j++) {
    float number = mlxr_read(first.at[j]) + (bias ? mlxr_read(bias[at * N + j]) : 0);
    if (is_gated) {
      float up = mlxr_read(second.at[j]) + (bias ? mlxr_read(bias[columns + at * N + j]) : 0);
      number = kind == SWIGLU_OAI ? number : mlxr_activated(number, kind, p, n);
      if (bounds & HAS_LIMIT) {
        number = mlxr_at_most(number, limit);
        up = mlxr_at_most(mlxr_at_least(up, -limit), limit);
      }
      number = kind == SWIGLU_OAI ? number * mlxr_sigmoid(1.702f * number) * (up + 1) : number * up;
    } else {
      number = mlxr_activated(number, kind, p, n);
    }
    number *= out_scale;
    number = bounds & HAS_OUT_CAP ? out_cap * tanhf(number / out_cap) : number;
    number = bounds & HAS_OUT_LIMIT ? mlxr_at_most(mlxr_at_least(number, -out_limit), out_limit) : number;
    number = gate ? number * open : number;
    mlxr_write(results.at[j], residual ? mlxr_read(added.at[j]) + residual_scale * number : number);
  }
  ((vector*)out)[place] = results;
}

#define MLXR_BESIDE(NAME, T, N)                                                                                     \
  extern "C" __global__ void __launch_bounds__(256) mlxr_norm_##NAME(                                               \
      const T* x, const T* weight, const T* bias, T* out, mlxr_u64 columns, mlxr_u64 stride, mlxr_u64 epsilon,      \
      mlxr_u64 is_layer, mlxr_u32* counter) {                                                                       \
    if (counter && blockIdx.x == 0 && threadIdx.x == 0) {                                                           \
      *counter = 0;                                                                                                 \
    }                                                                                                               \
    const T* const own = x + blockIdx.x * stride;                                                                   \
    T* const result = out + blockIdx.x * columns;                                                                   \
    if (columns % N == 0 && stride % N == 0 && columns <= 512 * N) {                                                \
      mlxr_norm<T, N, 2>(own, weight, bias, result, columns, mlxr_number(epsilon), is_layer);                       \
    } else if (columns % N == 0 && stride % N == 0) {                                                               \
      mlxr_norm<T, N, 0>(own, weight, bias, result, columns, mlxr_number(epsilon), is_layer);                       \
    } else {                                                                                                        \
      mlxr_norm<T, 1, 0>(own, weight, bias, result, columns, mlxr_number(epsilon), is_layer);                       \
    }                                                                                                               \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) mlxr_finish_##NAME(                                             \
      const T* sums, const T* bias, const T* gate, const T* residual, const T* alpha_p, const T* alpha_n, T* out,   \
      mlxr_u64 rows, mlxr_u64 columns, mlxr_u64 kind, mlxr_u64 is_gated, mlxr_u64 bounds, mlxr_u64 limit,           \
      mlxr_u64 out_cap, mlxr_u64 out_limit, mlxr_u64 out_scale, mlxr_u64 residual_scale) {                          \
    if (columns % N == 0) {                                                                                         \
      mlxr_finish<T, N>(                                                                                            \
          sums, bias, gate, residual, alpha_p, alpha_n, out, rows, columns, kind, is_gated, bounds,                 \
          mlxr_number(limit), mlxr_number(out_cap), mlxr_number(out_limit), mlxr_number(out_scale),                 \
          mlxr_number(residual_scale));                                                                             \
    } else {                                                                                                        \
      mlxr_finish<T, 1>(                                                                                            \
          sums, bias, gate, residual, alpha_p, alpha_n, out, rows, columns, kind, is_gated, bounds,                 \
          mlxr_number(limit), mlxr_number(out_cap), mlxr_number(out_limit), mlxr_number(out_scale),                 \
          mlxr_number(residual_scale));                                                                             \
    }                                                                                                               \
  }

#define MLXR_ACTIVATE(NAME, T, N)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256) mlxr_activate_##NAME(                                           \
      const T* sums, T* out, const int rows, const int columns, const int kind, const int is_gated,                 \
      const int has_limit, const float limit) {                                                                     \
    const mlxr_u32 bounds = has_limit ? HAS_LIMIT : 0;                                                              \
    if (columns % N == 0) {                                                                                         \
      mlxr_finish<T, N>(sums, 0, 0, 0, 0, 0, out, rows, columns, kind, is_gated, bounds, limit, 0, 0, 1, 1);        \
    } else {                                                                                                        \
      mlxr_finish<T, 1>(sums, 0, 0, 0, 0, 0, out, rows, columns, kind, is_gated, bounds, limit, 0, 0, 1, 1);        \
    }                                                                                                               \
  }

// A text has the kernels of one type: those of all three take 2.5 s to compile.
#ifndef MLXR_WITHOUT_BF16
MLXR_BESIDE(bf16, mlxr_bf16, 8)
MLXR_ACTIVATE(bf16, mlxr_bf16, 8)
#endif
#ifndef MLXR_WITHOUT_F16
MLXR_BESIDE(f16, mlxr_f16, 8)
MLXR_ACTIVATE(f16, mlxr_f16, 8)
#endif
#ifndef MLXR_WITHOUT_F32
MLXR_BESIDE(f32, mlxr_f32, 4)
MLXR_ACTIVATE(f32, mlxr_f32, 4)
#endif
