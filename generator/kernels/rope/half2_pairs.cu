// rope/half2_pairs: rotates the pairs (x[i], x[i + D/2]) of every head of q and of k by position * theta^(-2i/D), fp16.
//
// One launch for q and k together. Neighbouring columns of the lower half lie in one half2, their partners in
// another: every half2 instruction works on two rotations. A thread requests VEC neighbouring pairs of HEADS heads
// and computes their angles, in fp32, while they are on their way.
// Plain half arithmetic is too coarse once |x| exceeds 2. So sines and cosines are kept as two halves, a value and
// what it leaves out, and the rounding error of the product that is added to is carried along: as good as fp32.
// Gains over fused_vec: no tables to read, nor to wait for; twelve instructions for two pairs instead of fourteen,
// at twice the rate on sm_80.
//
// Launch: grid = ceil(M * ceil((H + KV) / HEADS) * D / 2 / VEC / THREADS), block = THREADS, no dynamic shared
//         memory.
// Needs:  any arch, D / 2 % VEC == 0. q is [M, H, D], k is [M, KV, D].
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block
constexpr int VEC = 4;       // pairs a thread rotates per head
constexpr int HEADS = 8;     // heads that share the angles of a thread
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(VEC == 2 || VEC == 4 || VEC == 8, "VEC must be 2, 4 or 8: one aligned access");
static_assert(HEADS >= 1 && HEADS * VEC <= 32, "HEADS * VEC packets do not fit the registers");

struct __align__(VEC * 2) Packet {
  __half2 h[VEC / 2];
};
struct Factor { // of two neighbouring columns: value + rest
  __half2 value, rest;
};

__device__ __forceinline__ Factor split(float even, float odd) {
  const __half2 value = __floats2half2_rn(even, odd);
  const float2 near = __half22float2(value);
  return {value, __floats2half2_rn(even - near.x, odd - near.y)};
}

// Whole turns are taken off before the fast functions, which are good near zero only; the fma leaves the product unrounded.
__device__ __forceinline__ float2 cosine_sine(float position, float frequency) {
  constexpr float TURN = 6.28318531f;
  const float per_token = frequency * (1.0f / TURN), turns = fmaf(position, per_token, -rintf(position * per_token));
  float2 cs;
  __sincosf(turns * TURN, &cs.y, &cs.x);
  return cs;
}

// x * c + y * s, rounded twice: the first product is exact in p + lost.
__device__ __forceinline__ __half2 rotate(__half2 x, Factor c, __half2 y, Factor s) {
  const __half2 p = __hmul2(y, s.value), lost = __hfma2(y, s.value, __hneg2(p));
  const __half2 rest = __hfma2(x, c.rest, __hfma2(y, s.rest, lost));
  return __hadd2(__hfma2(x, c.value, p), rest);
}

extern "C" __global__ void __launch_bounds__(THREADS)
rope_half2_pairs(const __half* __restrict__ q, const __half* __restrict__ k, const int* __restrict__ positions,
                 __half* __restrict__ q_out, __half* __restrict__ k_out, int tokens, int heads, int kv_heads, int dim,
                 float theta) {
  const int half_dim = dim / 2, packets = half_dim / VEC, groups = (heads + kv_heads + HEADS - 1) / HEADS;
  const int id = blockIdx.x * THREADS + threadIdx.x;
  const int packet = id % packets, group = id / packets % groups, token = id / packets / groups;
  if (token >= tokens) return;

  const long long in_q = (long long)token * heads * dim + packet * VEC;
  const long long in_k = ((long long)token * kv_heads - heads) * dim + packet * VEC; // head H is its first
  Packet low[HEADS], high[HEADS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = group * HEADS + h;
    if (head >= heads + kv_heads) break;
    const __half* x = (head < heads ? q + in_q : k + in_k) + head * dim;
    low[h] = *reinterpret_cast<const Packet*>(x);
    high[h] = *reinterpret_cast<const Packet*>(x + half_dim);
  }

  const float position = positions[token], octaves = log2f(theta) / half_dim;
  Factor c[VEC / 2], s[VEC / 2];
#pragma unroll
  for (int j = 0; j < VEC / 2; ++j) {
    const int pair = packet * VEC + 2 * j;
    const float2 even = cosine_sine(position, exp2f(-octaves * pair));
    const float2 odd = cosine_sine(position, exp2f(-octaves * (pair + 1)));
    c[j] = split(even.x, odd.x);
    s[j] = split(even.y, odd.y);
  }

#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = group * HEADS + h;
    if (head >= heads + kv_heads) break;
    Packet a, b;
#pragma unroll
    for (int j = 0; j < VEC / 2; ++j) {
      a.h[j] = rotate(low[h].h[j], c[j], __hneg2(high[h].h[j]), s[j]);
      b.h[j] = rotate(high[h].h[j], c[j], low[h].h[j], s[j]);
    }
    __half* y = (head < heads ? q_out + in_q : k_out + in_k) + head * dim;
    *reinterpret_cast<Packet*>(y) = a;
    *reinterpret_cast<Packet*>(y + half_dim) = b;
  }
}
