// rmsnorm/cluster_rows: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.
//
// The CLUSTER blocks of a cluster share one row. Each keeps its packets of the row and of the weights in
// registers, all requested at once. Every warp leaves its sum of squares in the shared memory of its block;
// after one barrier of the cluster, which is one of the block too, each warp reads the sums of all warps of
// all blocks through distributed shared memory, one a lane. A block must not exit while others read its sums:
// it arrives at a second barrier once it has read theirs, and waits there only after its stores.
// Gains over vec: few long rows reach CLUSTER times as many SMs, and no load waits for the sum.
//
// Launch: grid = CLUSTER * M, block = THREADS, no dynamic shared memory.
// Needs:  clusters (sm_90, sm_120), N % 8 == 0, N <= 8192.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int CLUSTER = 4;   // blocks of one row
constexpr int THREADS = 128; // threads per block
// -----------------------------------------------------------------------------

constexpr int MAX_COLS = 8192; // longest row that the registers of a cluster are sized for
constexpr int VEC = 8;         // halves of a 16-byte packet

static_assert(CLUSTER == 2 || CLUSTER == 4 || CLUSTER == 8, "CLUSTER must be 2, 4 or 8: a portable size");
static_assert((THREADS & (THREADS - 1)) == 0 && THREADS >= 32, "THREADS must be a power of two, 32 at least");
static_assert(CLUSTER * THREADS * VEC <= MAX_COLS, "CLUSTER * THREADS exceeds the packets of the longest row");

constexpr int WARPS = THREADS / 32;
constexpr int SUMS = CLUSTER * WARPS;                         // of one row: 32 at most, one a lane
constexpr int PACKETS = MAX_COLS / (CLUSTER * THREADS * VEC); // per thread

struct __align__(16) Packet {
  __half2 h[VEC / 2];
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The value that block `rank` of the cluster holds where this block holds `local`.
__device__ __forceinline__ float read_from(const float* local, unsigned rank) {
  const unsigned here = (unsigned)__cvta_generic_to_shared(local);
  unsigned there;
  float v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
  return v;
}

__device__ __forceinline__ void load(Packet (&to)[PACKETS], const __half* from, int first, int row_packets) {
#pragma unroll
  for (int i = 0; i < PACKETS; ++i) {
    const int p = first + i * CLUSTER * THREADS;
    to[i] = p < row_packets ? reinterpret_cast<const Packet*>(from)[p] : Packet{};
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
rmsnorm(const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ y, int cols, float eps) {
  __shared__ float partial[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_packets = cols / VEC;
  const size_t row = (size_t)(blockIdx.x / CLUSTER) * cols;
  const int first = blockIdx.x % CLUSTER * THREADS + threadIdx.x;

  Packet keep[PACKETS], weight[PACKETS];
  load(keep, x + row, first, row_packets);
  load(weight, w, first, row_packets);

  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PACKETS; ++i)
#pragma unroll
    for (int j = 0; j < VEC / 2; ++j) {
      const float2 f = __half22float2(keep[i].h[j]);
      sum += f.x * f.x + f.y * f.y;
    }
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  cluster_sync();
  sum = warp_sum(lane < SUMS ? read_from(&partial[lane % WARPS], lane / WARPS) : 0.0f);
  cluster_arrive();

  const float scale = rsqrtf(sum / cols + eps);
#pragma unroll
  for (int i = 0; i < PACKETS; ++i) {
    const int p = first + i * CLUSTER * THREADS;
    Packet out;
#pragma unroll
    for (int j = 0; j < VEC / 2; ++j) {
      const float2 f = __half22float2(keep[i].h[j]), g = __half22float2(weight[i].h[j]);
      out.h[j] = __floats2half2_rn(f.x * scale * g.x, f.y * scale * g.y);
    }
    if (p < row_packets) reinterpret_cast<Packet*>(y + row)[p] = out;
  }
  cluster_wait();
}
