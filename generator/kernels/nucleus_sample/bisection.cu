// nucleus_sample/bisection: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// One block owns one row of fp32 logits. The smallest logit of that set, the pivot, is found by
// bisection over keys that sort like floats: a pass over the row sums the mass at or above each of
// 2^RADIX - 1 trial pivots, and the greatest trial that still holds p of the total settles RADIX
// bits. Every logit equal to the pivot is kept. A last pass inverts the cumulative sum in index
// order. Simple and exact; but the row is read, and every weight computed, 32 / RADIX + 3 times.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, 0 < p < 1, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 1024; // threads per block
constexpr int RADIX = 1;      // bits of the pivot settled per pass
constexpr int UNROLL = 4;     // loads a thread issues before it uses the first
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(RADIX == 1 || RADIX == 2 || RADIX == 4, "RADIX must be 1, 2 or 4: it divides a key of 32 bits");

constexpr int WARPS = THREADS / 32;
constexpr int TRIALS = (1 << RADIX) - 1;

// Unsigned keys that sort like the floats they come from.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f + 0.0f); // -0 counts as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float add(float a, float b) { return a + b; }

// Combines one value of every thread; every thread gets the result.
template <class F> __device__ __forceinline__ float block_reduce(float v, F combine) {
  __shared__ float partial[WARPS];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v = combine(v, __shfl_xor_sync(0xffffffffu, v, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float all = partial[0];
  for (int i = 1; i < WARPS; ++i) all = combine(all, partial[i]);
  __syncthreads();
  return all;
}

// Inclusive prefix sum over the block; total receives the block's sum.
__device__ __forceinline__ float block_scan(float v, float& total) {
  __shared__ float sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
    if (lane >= offset) v += up;
  }
  if (lane == 31) sums[warp] = v;
  __syncthreads();
  float before = 0.0f;
  total = 0.0f;
  for (int i = 0; i < WARPS; ++i) {
    if (i < warp) before += sums[i];
    total += sums[i];
  }
  __syncthreads();
  return before + v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, int* __restrict__ token, int vocab,
               float p, float inv_temperature) {
  __shared__ int chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;

  float best = row[0];
#pragma unroll UNROLL
  for (int i = threadIdx.x; i < vocab; i += THREADS) best = fmaxf(best, row[i]);
  best = block_reduce(best, [](float a, float b) { return fmaxf(a, b); });

  float mass = 0.0f;
#pragma unroll UNROLL
  for (int i = threadIdx.x; i < vocab; i += THREADS) mass += __expf((row[i] - best) * inv_temperature);
  float kept = block_reduce(mass, add);
  const float need = p * kept;

  unsigned pivot = 0u;
  for (int low = 32 - RADIX; low >= 0; low -= RADIX) {
    float above[TRIALS] = {};
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < vocab; i += THREADS) {
      const float weight = __expf((row[i] - best) * inv_temperature);
      const unsigned key = order_key(row[i]);
#pragma unroll
      for (int t = 0; t < TRIALS; ++t)
        if (key >= pivot + (unsigned(t + 1) << low)) above[t] += weight;
    }
    unsigned digit = 0u;
#pragma unroll
    for (int t = 0; t < TRIALS; ++t) {
      const float held = block_reduce(above[t], add);
      if (held >= need) digit = t + 1, kept = held;
    }
    pivot += digit << low;
  }

  if (threadIdx.x == 0) chosen = 0;
  const float target = uniform[blockIdx.x] * kept;
  float base = 0.0f;
  for (int tile = 0; tile < vocab && base <= target; tile += THREADS) {
    const int i = tile + threadIdx.x;
    const bool live = i < vocab && order_key(row[i]) >= pivot;
    const float weight = live ? __expf((row[i] - best) * inv_temperature) : 0.0f;
    float sum;
    const float upto = base + block_scan(weight, sum);
    if (live && upto - weight <= target) atomicMax(&chosen, i);
    base += sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) token[blockIdx.x] = chosen;
}
