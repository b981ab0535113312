// moe_scatter/atomics: groups the M * K (token, expert) pairs by expert, in order, and copies each pair's fp16 row.
//
// A first kernel of one block counts the pairs of each expert with global atomics and lets one thread add
// up the offsets. In a second kernel one block owns one pair: it scans all earlier pairs for the same
// expert, sums the matches over the block by a tree, a barrier each step, and copies the token's row half
// by half, each thread a contiguous slice. The counts are the same in any order, so the result is too.
//
// Launch: count_experts: grid = 1, block = THREADS; rank_and_copy: grid = M * K, block = THREADS; no dynamic
//         shared memory.
// Needs:  any arch. Row r of y belongs to the pair p with row_map[p] = r.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block
constexpr int UNROLL = 1;    // elements a thread loads before it uses the first
// -----------------------------------------------------------------------------

static_assert((THREADS & (THREADS - 1)) == 0, "THREADS must be a power of two");
static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4, "UNROLL must be 1, 2 or 4");

extern "C" __global__ void __launch_bounds__(THREADS)
count_experts(const int* __restrict__ ids, int* __restrict__ offsets, int pairs, int experts) {
  for (int e = threadIdx.x; e <= experts; e += THREADS) offsets[e] = 0;
  __syncthreads();
#pragma unroll UNROLL
  for (int p = threadIdx.x; p < pairs; p += THREADS) atomicAdd(&offsets[ids[p] + 1], 1);
  __syncthreads();
  if (threadIdx.x == 0)
    for (int e = 1; e <= experts; ++e) offsets[e] += offsets[e - 1];
}

extern "C" __global__ void __launch_bounds__(THREADS)
rank_and_copy(const __half* __restrict__ x, const int* __restrict__ ids, const int* __restrict__ offsets, __half* __restrict__ y,
              int* __restrict__ row_map, int experts_per_token, int cols) {
  __shared__ int matches[THREADS];
  const int pair = blockIdx.x, expert = ids[pair];

  int count = 0;
#pragma unroll UNROLL
  for (int p = threadIdx.x; p < pair; p += THREADS) count += ids[p] == expert;
  matches[threadIdx.x] = count;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) matches[threadIdx.x] += matches[threadIdx.x + step];
    __syncthreads();
  }
  const int row = offsets[expert] + matches[0];
  if (threadIdx.x == 0) row_map[pair] = row;

  const int slice = (cols + THREADS - 1) / THREADS, begin = threadIdx.x * slice, end = min(begin + slice, cols);
  const __half* from = x + (size_t)(pair / experts_per_token) * cols;
  __half* to = y + (size_t)row * cols;
#pragma unroll UNROLL
  for (int n = begin; n < end; ++n) to[n] = from[n];
}
