// int4_gemv/lop3: y[m, n] = sum_k dequant(w[n, k]) * x[m, k], int4 weights, fp16 activations, fp32 sums.
//
// A lane loads 32 weights of a column with one 16-byte access and turns each word into four half2
// by the fp16 magic number: (word >> 4i) & 0x000f000f | 0x64006400 is {1024 + q, 1024 + q'}, one
// lop3, and subtracting 1032 leaves the two weights exactly. ROWS columns share the activations a
// lane has loaded; the products of one word add up in half2, all else in fp32.
// Gains over naive_unpack: 32 weights per load, 11 instructions per 8 weights instead of 8 per weight.
//
// A word holds eight nibbles: k = 2i at bit 4i, k = 2i + 1 at bit 4i + 16; a nibble is weight + 8.
//
// Launch: grid = (ceil(M / BLOCK_M), ceil(N / (WARPS * ROWS))), block = 32 * WARPS, no dynamic
//         shared memory.
// Needs:  any arch, K % 32 == 0, K % GROUP == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int GROUP = 128; // weights per scale
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;   // warps per block
constexpr int ROWS = 2;    // output columns (rows of w) per warp
constexpr int BLOCK_M = 1; // activation rows a warp multiplies by
constexpr int UNROLL = 1;  // unroll of the loop over K
// -----------------------------------------------------------------------------

constexpr int LANE_K = 32; // weights a lane takes per step: one 16-byte load

static_assert(WARPS >= 1 && WARPS <= 32, "a block has 1 to 32 warps");
static_assert(ROWS * BLOCK_M <= 32, "ROWS * BLOCK_M accumulators exceed 32 registers");
static_assert((UNROLL & (UNROLL - 1)) == 0, "UNROLL must be a power of two");
static_assert(GROUP % LANE_K == 0, "GROUP must be a multiple of the 32 weights of a load");

struct __align__(16) Half8 {
  __half2 h[4];
};

// (bits & 0x000f000f) | 0x64006400: two nibbles as the halves 1024 + q.
__device__ __forceinline__ unsigned magic(unsigned bits) {
  unsigned out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(bits), "n"(0x000f000f), "n"(0x64006400));
  return out;
}

__device__ __forceinline__ Half8 dequant(unsigned word) {
  const __half2 bias = __float2half2_rn(1032.0f);
  Half8 w;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned bits = magic(word >> (4 * i));
    w.h[i] = __hsub2(*reinterpret_cast<const __half2*>(&bits), bias);
  }
  return w;
}

__device__ __forceinline__ float dot8(const Half8& w, const Half8& x) {
  __half2 sum = __hmul2(w.h[0], x.h[0]);
#pragma unroll
  for (int i = 1; i < 4; ++i) sum = __hfma2(w.h[i], x.h[i], sum);
  const float2 f = __half22float2(sum);
  return f.x + f.y;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
int4_gemv(const unsigned* __restrict__ w, const __half* __restrict__ scale, const __half* __restrict__ x,
          __half* __restrict__ y, int M, int N, int K) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int n0 = (blockIdx.y * WARPS + warp) * ROWS, m0 = blockIdx.x * BLOCK_M;
  float acc[ROWS][BLOCK_M] = {};

  // Columns past N and rows past M repeat the last one; their sums are not stored.
#pragma unroll UNROLL
  for (int k = lane * LANE_K; k < K; k += 32 * LANE_K) {
    uint4 q[ROWS];
    float s[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const size_t n = min(n0 + r, N - 1);
      q[r] = *reinterpret_cast<const uint4*>(w + (n * K + k) / 8);
      s[r] = __half2float(scale[n * (K / GROUP) + k / GROUP]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Half8 weight[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) weight[r] = dequant(i == 0 ? q[r].x : i == 1 ? q[r].y : i == 2 ? q[r].z : q[r].w);
#pragma unroll
      for (int m = 0; m < BLOCK_M; ++m) {
        const size_t row = min(m0 + m, M - 1);
        const Half8 xv = *reinterpret_cast<const Half8*>(x + row * K + k + i * 8);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) acc[r][m] += s[r] * dot8(weight[r], xv);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int m = 0; m < BLOCK_M; ++m) {
#pragma unroll
      for (int offset = 16; offset > 0; offset >>= 1) acc[r][m] += __shfl_xor_sync(0xffffffffu, acc[r][m], offset);
      if (lane == 0 && n0 + r < N && m0 + m < M) y[(size_t)(m0 + m) * N + n0 + r] = __float2half(acc[r][m]);
    }
}
