// rmsnorm/warp_row: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.
//
// One warp owns one row, and a block is ROWS such warps. Neighbouring lanes load neighbouring packets, all of
// the row before the first is used, and keep them in registers, so x is read once. The sum of squares takes
// five shuffles: no shared memory and no barrier, and warps never wait for each other. The price is the size
// of a row in one warp: up to 256 halves a lane, so few warps fit an SM and each has much to do alone.
// Gains over scalar: half the reads, whole sectors, the row in flight at once, no barrier.
//
// Launch: grid = ceil(M / ROWS), block = 32 * ROWS, no dynamic shared memory.
// Needs:  any arch, N % VEC == 0, N <= 8192.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int ROWS = 4; // rows of one block, a warp each
constexpr int VEC = 8;  // halves per global access
// -----------------------------------------------------------------------------

constexpr int MAX_COLS = 8192; // longest row that the registers of a warp are sized for

static_assert(VEC == 2 || VEC == 4 || VEC == 8, "VEC must be 2, 4 or 8: one aligned access");
static_assert(ROWS >= 1, "ROWS must be at least 1");
static_assert(ROWS <= 8, "ROWS must be 8 at most: more warps would spill their rows");

constexpr int PACKETS = MAX_COLS / (32 * VEC); // per lane

struct __align__(VEC * 2) Packet {
  __half2 h[VEC / 2];
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

extern "C" __global__ void __launch_bounds__(32 * ROWS)
rmsnorm(const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ y, int rows, int cols, float eps) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32, row_packets = cols / VEC;
  if (row >= rows) return;
  const Packet* xp = reinterpret_cast<const Packet*>(x + (size_t)row * cols);
  const Packet* wp = reinterpret_cast<const Packet*>(w);
  Packet* yp = reinterpret_cast<Packet*>(y + (size_t)row * cols);

  Packet keep[PACKETS];
#pragma unroll
  for (int i = 0; i < PACKETS; ++i) {
    const int p = i * 32 + lane;
    if (p < row_packets) keep[i] = xp[p];
  }

  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PACKETS; ++i) {
    if (i * 32 + lane < row_packets) {
#pragma unroll
      for (int j = 0; j < VEC / 2; ++j) {
        const float2 f = __half22float2(keep[i].h[j]);
        sum += f.x * f.x + f.y * f.y;
      }
    }
  }

  const float scale = rsqrtf(warp_sum(sum) / cols + eps);

#pragma unroll
  for (int i = 0; i < PACKETS; ++i) {
    const int p = i * 32 + lane;
    if (p < row_packets) {
      const Packet weight = wp[p];
      Packet out;
#pragma unroll
      for (int j = 0; j < VEC / 2; ++j) {
        const float2 f = __half22float2(keep[i].h[j]), g = __half22float2(weight.h[j]);
        out.h[j] = __floats2half2_rn(f.x * scale * g.x, f.y * scale * g.y);
      }
      yp[p] = out;
    }
  }
}
