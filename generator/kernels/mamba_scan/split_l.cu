// mamba_scan/split_l: Mamba-1 selective scan with softplus, skip and SiLU gate; fp16 in and out, fp32 state.
//
//   dt = softplus(delta + bias),  h[n] = exp(dt * A[n]) * h[n] + dt * u * B[n],
//   y = (sum over n of C[n] * h[n] + skip * u) * silu(z)
//
// L is cut into SPLITS runs that are scanned at once. scan_local finds the state each run but the last
// would end in if it began at zero, and the sum of its dt; scan_carry chains those, since a whole run
// decays a state by exp(A * sum of dt); scan_final walks every run again from its true state, for y.
// Gains over sequential: SPLITS times the threads, A in registers, B and C eight states a load, one ex2
// per state and step. The price: (2 * SPLITS - 1) / SPLITS walks over u, delta and B.
//
// Launch: scan_local, scan_carry, scan_final; grid = (ceil(D / THREADS), SPLITS - 1, B), then
//         (ceil(D / THREADS), STATES, B), then (ceil(D / THREADS), SPLITS, B); block = THREADS.
//         Scratch, fp32: state [B, SPLITS, STATES, D] and total [B, SPLITS, D].
// Needs:  any arch.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int STATES = 16;   // state size N
// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block, one channel each
constexpr int SPLITS = 4;    // runs that L is cut into
constexpr int UNROLL = 4;    // steps whose u, delta and z are loaded before the first is used
// -----------------------------------------------------------------------------

static_assert(STATES % 8 == 0, "N must be a multiple of 8");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, at most 1024");
static_assert(SPLITS >= 2, "SPLITS must be at least 2");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4 || UNROLL == 8, "UNROLL must be 1, 2, 4 or 8");

constexpr float LOG2E = 1.4426950408889634f;

struct __align__(16) Packet {
  __half2 h[4];
};

__device__ __forceinline__ float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : __logf(1.0f + ex2(x * LOG2E)); }

// Walks steps [begin, end) of one channel from state h; returns the sum of dt. y is written if WRITE.
template <bool WRITE>
__device__ __forceinline__ float walk(float (&h)[STATES], const __half* u, const __half* delta, const float* A, const __half* Bm,
                                      const __half* Cm, const __half* z, float skip, float bias, __half* y, size_t first, int begin,
                                      int end, int d, int D) {
  float rate[STATES], total = 0.0f;
#pragma unroll
  for (int n = 0; n < STATES; ++n) rate[n] = A[d * STATES + n] * LOG2E;

  for (int t0 = begin; t0 < end; t0 += UNROLL) {
    float us[UNROLL], dts[UNROLL], zs[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      const size_t at = (first + min(t0 + i, end - 1)) * D + d;
      us[i] = __half2float(u[at]);
      dts[i] = __half2float(delta[at]);
      if (WRITE) zs[i] = __half2float(z[at]);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      const int t = t0 + i;
      if (t >= end) break;
      const float dt = softplus(dts[i] + bias), drive = dt * us[i];
      total += dt;
      float sum = skip * us[i];
#pragma unroll
      for (int n = 0; n < STATES; n += 8) {
        const Packet b = *reinterpret_cast<const Packet*>(Bm + (first + t) * STATES + n);
        Packet c = b;
        if (WRITE) c = *reinterpret_cast<const Packet*>(Cm + (first + t) * STATES + n);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 bf = __half22float2(b.h[j]), cf = __half22float2(c.h[j]);
          float &even = h[n + 2 * j], &odd = h[n + 2 * j + 1];
          even = ex2(dt * rate[n + 2 * j]) * even + drive * bf.x;
          odd = ex2(dt * rate[n + 2 * j + 1]) * odd + drive * bf.y;
          sum += cf.x * even + cf.y * odd;
        }
      }
      if (WRITE) y[(first + t) * D + d] = __float2half(sum * __fdividef(zs[i], 1.0f + ex2(-zs[i] * LOG2E)));
    }
  }
  return total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
scan_local(const __half* __restrict__ u, const __half* __restrict__ delta, const float* __restrict__ A, const __half* __restrict__ Bm,
           const float* __restrict__ bias, float* __restrict__ state, float* __restrict__ total, int L, int D) {
  const int d = blockIdx.x * THREADS + threadIdx.x, split = blockIdx.y;
  if (d >= D) return;
  const int run = (L + SPLITS - 1) / SPLITS;
  const size_t slot = blockIdx.z * SPLITS + split;
  float h[STATES] = {};
  total[slot * D + d] = walk<false>(h, u, delta, A, Bm, nullptr, nullptr, 0.0f, bias[d], nullptr, (size_t)blockIdx.z * L, split * run,
                                    min((split + 1) * run, L), d, D);
#pragma unroll
  for (int n = 0; n < STATES; ++n) state[(slot * STATES + n) * D + d] = h[n];
}

// Turns the end state of each run into the state its successor begins in: slot s gets what run s starts from.
extern "C" __global__ void __launch_bounds__(THREADS)
scan_carry(const float* __restrict__ A, float* __restrict__ state, const float* __restrict__ total, int D) {
  const int d = blockIdx.x * THREADS + threadIdx.x, n = blockIdx.y;
  if (d >= D) return;
  const float rate = A[d * STATES + n] * LOG2E;
  float carry = 0.0f;
  for (int split = 0; split < SPLITS; ++split) {
    const size_t slot = blockIdx.z * SPLITS + split, at = (slot * STATES + n) * D + d;
    const float ended = split < SPLITS - 1 ? state[at] : 0.0f;
    state[at] = carry;
    if (split < SPLITS - 1) carry = ex2(rate * total[slot * D + d]) * carry + ended;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
scan_final(const __half* __restrict__ u, const __half* __restrict__ delta, const float* __restrict__ A, const __half* __restrict__ Bm,
           const __half* __restrict__ Cm, const __half* __restrict__ z, const float* __restrict__ skip, const float* __restrict__ bias,
           const float* __restrict__ state, __half* __restrict__ y, int L, int D) {
  const int d = blockIdx.x * THREADS + threadIdx.x, split = blockIdx.y;
  if (d >= D) return;
  const int run = (L + SPLITS - 1) / SPLITS;
  const size_t slot = blockIdx.z * SPLITS + split;
  float h[STATES];
#pragma unroll
  for (int n = 0; n < STATES; ++n) h[n] = state[(slot * STATES + n) * D + d];
  walk<true>(h, u, delta, A, Bm, Cm, z, skip[d], bias[d], y, (size_t)blockIdx.z * L, split * run, min((split + 1) * run, L), d, D);
}
