// rmsnorm/scalar: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.
//
// One block owns one row, each thread a contiguous slice of it, as one would split an array between
// workers. A thread sums the squares of its slice half by half; the sums are added by a tree in shared
// memory, a barrier each step; then the slice is read again, scaled and stored. Neighbouring threads are
// a slice apart, so a warp touches up to 32 sectors an access, and has one access in flight.
//
// Launch: grid = M, block = THREADS, no dynamic shared memory.
// Needs:  any arch.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block
constexpr int UNROLL = 1;    // loads a thread issues before it uses the first
// -----------------------------------------------------------------------------

static_assert((THREADS & (THREADS - 1)) == 0, "THREADS must be a power of two");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4, "UNROLL must be 1, 2 or 4");

// Sum over the block; every thread gets the result.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float partial[THREADS];
  partial[threadIdx.x] = v;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    __syncthreads();
  }
  return partial[0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
rmsnorm(const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ y, int cols, float eps) {
  const size_t row = (size_t)blockIdx.x * cols;
  const int slice = (cols + THREADS - 1) / THREADS;
  const int begin = threadIdx.x * slice, end = min(begin + slice, cols);

  float sum = 0.0f;
#pragma unroll UNROLL
  for (int n = begin; n < end; ++n) {
    const float f = __half2float(x[row + n]);
    sum += f * f;
  }

  const float scale = rsqrtf(block_sum(sum) / cols + eps);

#pragma unroll UNROLL
  for (int n = begin; n < end; ++n)
    y[row + n] = __float2half(__half2float(x[row + n]) * scale * __half2float(w[n]));
}
