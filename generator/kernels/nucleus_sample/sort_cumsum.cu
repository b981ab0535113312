// nucleus_sample/sort_cumsum: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// One block owns one row of fp32 logits. It sorts the row's keys, greatest logit first, by radix sort between two
// buffers in global memory, RADIX bits a pass from the lowest: each warp counts the digits of its slice, a scan over
// digits and warps turns counts into places, and each warp puts its keys there in order, 32 at a time; lanes of equal
// digit rank themselves by a match. The cumulative sum of the sorted weights gives the pivot, the smallest logit of the
// set; all logits equal to it are kept. A cumulative sum in index order over those kept gives the token.
// Gains over bisection: few weights, and 32 / RADIX passes with two reads and a write each, whatever the logits.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory; two buffers of V keys a row.
// Needs:  any arch, 0 < p < 1, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 512; // threads per block
constexpr int RADIX = 8;     // bits sorted per pass
constexpr int UNROLL = 4;    // keys a thread loads before it places the first
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert((1 << RADIX) <= THREADS, "a thread scans the counts of one digit: 2^RADIX must not exceed THREADS");

constexpr int WARPS = THREADS / 32;
constexpr int BINS = 1 << RADIX;
constexpr unsigned ALL = 0xffffffffu;

// Unsigned keys that sort like the floats they come from, greatest first.
__device__ __forceinline__ unsigned falling_key(float f) {
  const unsigned bits = __float_as_uint(f);
  return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key : ~key & 0x7fffffffu);
}

// Inclusive prefix sum over the block; total receives the block's sum.
template <class T> __device__ __forceinline__ T block_scan(T v, T& total) {
  __shared__ T sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int offset = 1; offset < 32; offset <<= 1) {
    const T up = __shfl_up_sync(ALL, v, offset);
    if (lane >= offset) v += up;
  }
  if (lane == 31) sums[warp] = v;
  __syncthreads();
  T before = total = 0;
  for (int w = 0; w < WARPS; total += sums[w++])
    if (w == warp) before = total;
  __syncthreads();
  return before + v;
}

template <class F> __device__ __forceinline__ float block_sum(int count, F weight) {
  float sum = 0.0f, total;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += THREADS) sum += weight(i);
  block_scan(sum, total);
  return total;
}

// Inverse transform: the last place of positive weight before which the cumulative sum is at most target.
template <class F> __device__ __forceinline__ int locate(int count, float target, F weight) {
  __shared__ int place;
  if (threadIdx.x == 0) place = 0;
  float base = 0.0f, sum;
  for (int tile = 0; tile < count && base <= target; tile += THREADS) {
    const int i = tile + threadIdx.x;
    const float mine = i < count ? weight(i) : 0.0f, upto = base + block_scan(mine, sum);
    if (mine > 0.0f && upto - mine <= target) atomicMax(&place, i);
    base += sum;
  }
  __syncthreads();
  return place;
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, unsigned* keys,
               int* __restrict__ token, int vocab, float p, float inv_temperature) {
  __shared__ int places[WARPS][BINS];
  const float* row = logits + (size_t)blockIdx.x * vocab;
  unsigned *from = keys + (size_t)blockIdx.x * 2 * vocab, *to = from + vocab;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int share = (vocab + WARPS - 1) / WARPS, begin = warp * share, end = min(begin + share, vocab);

  for (int low = 0; low < 32; low += RADIX) {
    const auto key_at = [&](int i) { return low == 0 ? falling_key(row[i]) : from[i]; };
    for (int i = tid; i < WARPS * BINS; i += THREADS) places[i / BINS][i % BINS] = 0;
    __syncthreads();
#pragma unroll UNROLL
    for (int i = begin + lane; i < end; i += 32) atomicAdd(&places[warp][(key_at(i) >> low) % BINS], 1);
    __syncthreads();
    int count = 0, all;
    for (int w = 0; w < WARPS && tid < BINS; ++w) count += places[w][tid];
    int place = block_scan(count, all) - count;
    for (int w = 0; w < WARPS && tid < BINS; ++w) {
      const int here = places[w][tid];
      places[w][tid] = place;
      place += here;
    }
    __syncthreads();
    for (int i = begin + lane; i - lane < end; i += 32 * UNROLL) {
      unsigned hold[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        if (i + u * 32 < end) hold[u] = key_at(i + u * 32);
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const bool live = i + u * 32 < end;
        const int digit = live ? (hold[u] >> low) % BINS : BINS;
        const unsigned peers = __match_any_sync(ALL, digit);
        const int rank = __popc(peers & ((1u << lane) - 1u));
        if (live) to[places[warp][digit] + rank] = hold[u];
        __syncwarp();
        if (live && rank == 0) places[warp][digit] += __popc(peers);
        __syncwarp();
      }
    }
    __syncthreads();
    unsigned* sorted = to;
    to = from;
    from = sorted;
  }

  const float best = logit_of(from[0]);
  const auto weight = [&](float f) { return __expf((f - best) * inv_temperature); };
  const auto falling = [&](int i) { return weight(logit_of(from[i])); };
  const float pivot = logit_of(from[locate(vocab, p * block_sum(vocab, falling), falling)]);
  const auto kept = [&](int i) { return row[i] >= pivot ? weight(row[i]) : 0.0f; };
  const int chosen = locate(vocab, uniform[blockIdx.x] * block_sum(vocab, kept), kept);
  if (tid == 0) token[blockIdx.x] = chosen;
}
