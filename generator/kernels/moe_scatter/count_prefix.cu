// moe_scatter/count_prefix: groups the M * K (token, expert) pairs by expert, in order, and copies each pair's fp16 row.
//
// A first kernel of one block ranks the pairs: each warp counts the experts of its contiguous share, lanes
// with the same expert found by match; a prefix over experts and warps gives every (warp, expert) its first
// row; a second walk hands the rows out in order. A second kernel then copies ROWS rows a block, VEC halves
// an access, the loads of all its rows in flight together.
// Gains over atomics: every pair is looked at twice instead of M * K times; whole sectors.
//
// Launch: rank_pairs: grid = 1, block = WARPS * 32, dynamic shared memory = (WARPS * E + E + 1) * 4 bytes;
//         copy_rows: grid = ceil(M * K / ROWS), block = THREADS.
// Needs:  any arch, N % VEC == 0. Row r of y belongs to the pair p with row_map[p] = r.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 8;     // warps that rank the pairs
constexpr int THREADS = 256; // threads per block of the copy
constexpr int VEC = 4;       // halves per access of the copy
constexpr int ROWS = 1;      // rows a block of the copy moves
// -----------------------------------------------------------------------------

static_assert(WARPS >= 1 && WARPS <= 32, "one block has 1 to 32 warps");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(VEC == 2 || VEC == 4 || VEC == 8, "VEC must be 2, 4 or 8: one aligned access");
static_assert(ROWS >= 1 && ROWS <= 8, "ROWS must be 1 to 8");

struct __align__(VEC * 2) Packet {
  __half2 h[VEC / 2];
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
rank_pairs(const int* __restrict__ ids, int* __restrict__ offsets, int* __restrict__ row_map, int pairs, int experts) {
  extern __shared__ int next[]; // [WARPS][experts], then [experts + 1] first rows
  int* first = next + WARPS * experts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int share = (pairs + WARPS * 32 - 1) / (WARPS * 32) * 32, begin = warp * share, end = min(begin + share, pairs);
  int* mine = next + warp * experts;

  for (int i = threadIdx.x; i < WARPS * experts; i += WARPS * 32) next[i] = 0;
  __syncthreads();
  for (int p = begin + lane; p - lane < end; p += 32) {
    const int expert = p < end ? ids[p] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] += __popc(same);
    __syncwarp();
  }
  __syncthreads();

  for (int e = threadIdx.x; e < experts; e += WARPS * 32) {
    int sum = 0;
    for (int w = 0; w < WARPS; ++w) {
      const int count = next[w * experts + e];
      next[w * experts + e] = sum;
      sum += count;
    }
    first[e + 1] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    int carry = 0;
    for (int base = 0; base < experts; base += 32) {
      const int e = base + lane;
      int sum = e < experts ? first[e + 1] : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += below;
      }
      if (e < experts) first[e + 1] = carry + sum;
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) first[0] = 0;
  }
  __syncthreads();
  for (int e = threadIdx.x; e <= experts; e += WARPS * 32) offsets[e] = first[e];

  for (int p = begin + lane; p - lane < end; p += 32) {
    const int expert = p < end ? ids[p] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    if (expert >= 0) row_map[p] = first[expert] + mine[expert] + __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] += __popc(same);
    __syncwarp();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
copy_rows(const Packet* __restrict__ x, const int* __restrict__ row_map, Packet* __restrict__ y, int pairs,
          int experts_per_token, int cols) {
  const int packets = cols / VEC, first = blockIdx.x * ROWS;
  int from[ROWS], to[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    from[r] = (first + r) / experts_per_token;
    to[r] = first + r < pairs ? row_map[first + r] : -1;
  }
  for (int n = threadIdx.x; n < packets; n += THREADS) {
    Packet keep[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (to[r] >= 0) keep[r] = x[(size_t)from[r] * packets + n];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (to[r] >= 0) y[(size_t)to[r] * packets + n] = keep[r];
  }
}
