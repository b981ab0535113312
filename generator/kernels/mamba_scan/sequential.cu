// mamba_scan/sequential: Mamba-1 selective scan with softplus, skip and SiLU gate; fp16 in and out, fp32 state.
//
//   dt = softplus(delta + bias),  h[n] = exp(dt * A[n]) * h[n] + dt * u * B[n],
//   y = (sum over n of C[n] * h[n] + skip * u) * silu(z)
//
// One thread owns one channel of one sequence and walks L from start to end, its state in registers.
// Simple and correct; y may alias A for all the compiler knows, so every step loads A again, 64 bytes
// apart in neighbouring lanes, and B and C come one half at a time.
//
// Launch: grid = (ceil(D / THREADS), B), block = THREADS, no dynamic shared memory.
// Needs:  any arch.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int STATES = 16;   // state size N
// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block, one channel each
constexpr int UNROLL = 1;    // steps whose u, delta and z are loaded before the first is used
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4 || UNROLL == 8, "UNROLL must be 1, 2, 4 or 8");

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

extern "C" __global__ void __launch_bounds__(THREADS)
scan(const __half* u, const __half* delta, const float* A, const __half* Bm, const __half* Cm, const __half* z,
     const float* skip, const float* bias, __half* y, int L, int D) {
  const int d = blockIdx.x * THREADS + threadIdx.x;
  if (d >= D) return;
  const size_t first = (size_t)blockIdx.y * L;

  float h[STATES] = {};
  for (int t0 = 0; t0 < L; t0 += UNROLL) {
    float us[UNROLL], deltas[UNROLL], zs[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      const size_t at = (first + min(t0 + i, L - 1)) * D + d;
      us[i] = __half2float(u[at]);
      deltas[i] = __half2float(delta[at]);
      zs[i] = __half2float(z[at]);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      const int t = t0 + i;
      if (t < L) {
        const float dt = softplus(deltas[i] + bias[d]);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < STATES; ++n) {
          const size_t bc = (first + t) * STATES + n;
          h[n] = expf(dt * A[d * STATES + n]) * h[n] + dt * us[i] * __half2float(Bm[bc]);
          sum += __half2float(Cm[bc]) * h[n];
        }
        const float gate = zs[i] / (1.0f + expf(-zs[i]));
        y[(first + t) * D + d] = __float2half((sum + skip[d] * us[i]) * gate);
      }
    }
  }
}
