// int4_gemv/naive_unpack: y[m, n] = sum_k dequant(w[n, k]) * x[m, k], int4 weights, fp16 activations, fp32 sums.
//
// One warp owns one output column, one lane one weight at a time: it loads the word that holds the
// nibble, shifts, converts, scales, and multiplies by up to BLOCK_M activations. Eight lanes load
// the same word, so a warp-wide access brings in 16 bytes; w is read once per BLOCK_M rows.
//
// A word holds eight nibbles: k = 2i at bit 4i, k = 2i + 1 at bit 4i + 16; a nibble is weight + 8.
//
// Launch: grid = (ceil(M / BLOCK_M), ceil(N / WARPS)), block = 32 * WARPS, no dynamic shared memory.
// Needs:  any arch, K % 32 == 0, K % GROUP == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int GROUP = 128; // weights per scale
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;   // warps per block, one output column each
constexpr int BLOCK_M = 4; // activation rows a warp multiplies by
constexpr int UNROLL = 1;  // unroll of the loop over K
// -----------------------------------------------------------------------------

static_assert(WARPS >= 1 && WARPS <= 32, "a block has 1 to 32 warps");
static_assert(BLOCK_M >= 1 && BLOCK_M <= 8, "BLOCK_M must be 1 to 8: one accumulator a row");
static_assert((UNROLL & (UNROLL - 1)) == 0, "UNROLL must be a power of two");

extern "C" __global__ void __launch_bounds__(32 * WARPS)
int4_gemv(const unsigned* __restrict__ w, const __half* __restrict__ scale, const __half* __restrict__ x,
          __half* __restrict__ y, int M, int N, int K) {
  const int lane = threadIdx.x % 32;
  const int n = blockIdx.y * WARPS + threadIdx.x / 32, m0 = blockIdx.x * BLOCK_M;
  if (n >= N) return;

  const int shift = lane % 8 / 2 * 4 + lane % 2 * 16;
  float acc[BLOCK_M] = {};
#pragma unroll UNROLL
  for (int k = lane; k < K; k += 32) {
    const int nibble = w[((size_t)n * K + k) / 8] >> shift & 15;
    const float weight = (nibble - 8) * __half2float(scale[(size_t)n * (K / GROUP) + k / GROUP]);
#pragma unroll
    for (int m = 0; m < BLOCK_M; ++m)
      if (m0 + m < M) acc[m] += weight * __half2float(x[(size_t)(m0 + m) * K + k]);
  }

#pragma unroll
  for (int m = 0; m < BLOCK_M; ++m) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) acc[m] += __shfl_xor_sync(0xffffffffu, acc[m], offset);
    if (lane == 0 && m0 + m < M) y[(size_t)(m0 + m) * N + n] = __float2half(acc[m]);
  }
}
