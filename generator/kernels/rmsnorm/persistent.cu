// rmsnorm/persistent: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.
//
// A grid of PERSISTENT blocks stays for the whole launch, block b taking rows b, b + PERSISTENT, and so on.
// The weights stay in registers for all of them, and the next row is requested before the sum of the
// current one is needed: while the block reduces, scales and stores, its loads are already under way. Two
// shared buffers, used in turn, make one barrier a row enough.
// Gains over vec: no gap in the loads during the reduction, weights read once per block and not once a row.
//
// Launch: grid = min(M, PERSISTENT), block = THREADS, no dynamic shared memory.
// Needs:  any arch, N % 8 == 0, N <= 8192.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256;    // threads per block
constexpr int PERSISTENT = 256; // blocks of the grid
// -----------------------------------------------------------------------------

constexpr int MAX_COLS = 8192; // longest row that the registers of a block are sized for
constexpr int VEC = 8;         // halves of a 16-byte packet

static_assert((THREADS & (THREADS - 1)) == 0, "THREADS must be a power of two");
static_assert(THREADS >= 128 && THREADS * VEC <= MAX_COLS, "THREADS must be 128 to 1024: the row in registers");
static_assert(PERSISTENT >= 1, "PERSISTENT must be at least 1");

constexpr int WARPS = THREADS / 32;
constexpr int PACKETS = MAX_COLS / (THREADS * VEC); // per thread

struct __align__(16) Packet {
  __half2 h[VEC / 2];
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

__device__ __forceinline__ void load(Packet (&to)[PACKETS], const __half* from, int row_packets) {
#pragma unroll
  for (int i = 0; i < PACKETS; ++i) {
    const int p = i * THREADS + threadIdx.x;
    to[i] = p < row_packets ? reinterpret_cast<const Packet*>(from)[p] : Packet{};
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
rmsnorm(const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ y, int rows, int cols, float eps) {
  __shared__ float partial[2][WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_packets = cols / VEC;

  Packet weight[PACKETS], now[PACKETS], next[PACKETS];
  load(now, x + (size_t)blockIdx.x * cols, row_packets);
  load(weight, w, row_packets);

#pragma unroll 1
  for (int row = blockIdx.x, turn = 0; row < rows; row += PERSISTENT, turn ^= 1) {
    if (row + PERSISTENT < rows) load(next, x + (size_t)(row + PERSISTENT) * cols, row_packets);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PACKETS; ++i)
#pragma unroll
      for (int j = 0; j < VEC / 2; ++j) {
        const float2 f = __half22float2(now[i].h[j]);
        sum += f.x * f.x + f.y * f.y;
      }
    sum = warp_sum(sum);
    if (lane == 0) partial[turn][warp] = sum;
    __syncthreads();
    const float scale = rsqrtf(warp_sum(lane < WARPS ? partial[turn][lane] : 0.0f) / cols + eps);

    Packet* yp = reinterpret_cast<Packet*>(y + (size_t)row * cols);
#pragma unroll
    for (int i = 0; i < PACKETS; ++i) {
      const int p = i * THREADS + threadIdx.x;
      Packet out;
#pragma unroll
      for (int j = 0; j < VEC / 2; ++j) {
        const float2 f = __half22float2(now[i].h[j]), g = __half22float2(weight[i].h[j]);
        out.h[j] = __floats2half2_rn(f.x * scale * g.x, f.y * scale * g.y);
      }
      if (p < row_packets) yp[p] = out;
      now[i] = next[i];
    }
  }
}
