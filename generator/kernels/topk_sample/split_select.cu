// topk_sample/split_select: one token per row, drawn from the softmax of its k largest logits (fp32).
//
// Many blocks share a row. Each holds a chunk of it in registers, bounds the row's cut from below by
// two digits of the k-th largest of its threads' maxima, and lists all logits at or above that bound.
// One block per row then selects among those, weighs them, and reads again the chunks of the draw.
// Gains over radix_select: every multiprocessor works on the row, and logits are read from DRAM once.
//
// Launch: topk_chunk, grid = (ceil(V / CHUNK), B), block = THREADS; topk_sample, grid = B, block = MERGERS.
// Needs:  any arch, 1 <= k <= vocab, k <= THREADS, vocab % VEC == 0, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int ITEMS = 16;    // logits a thread holds
constexpr int VEC = 4;       // logits per global access
constexpr int RADIX = 8;     // bits settled per round of a selection
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert((VEC == 1 || VEC == 2 || VEC == 4) && ITEMS % VEC == 0, "VEC must be 1, 2 or 4 and divide ITEMS");
static_assert(RADIX >= 5 && RADIX <= 12, "RADIX must be 5 to 12: a warp scans the bins");

constexpr int CHUNK = THREADS * ITEMS;
constexpr int MERGERS = 1024; // threads of the second kernel: as many warps as lanes
constexpr int WARPS = MERGERS / 32;
constexpr int BINS = 1 << RADIX;
constexpr float LOWEST = -3.402823466e38f; // stands in beyond the row

struct __align__(VEC * 4) Packet {
  float f[VEC];
};

// Unsigned keys that sort like the floats they come from.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f + 0.0f); // -0 counts as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Inclusive prefix sum over a warp.
template <class T> __device__ __forceinline__ T warp_scan(T v) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const T up = __shfl_up_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 >= offset) v += up;
  }
  return v;
}

// The k-th largest key of the block, cut after its first `bits`; each(f) calls f on every key of this thread.
template <int BLOCK, class Each> __device__ __forceinline__ unsigned kth_largest(Each each, int k, int bits) {
  constexpr int SPAN = BINS / 32;
  __shared__ int hist[BINS];
  __shared__ unsigned digit;
  unsigned cut = 0u;
  for (int settled = 0; settled < bits; settled += RADIX) {
    const unsigned fixed = ~(0xffffffffu >> settled);
    for (int i = threadIdx.x; i < BINS; i += BLOCK) hist[i] = 0;
    __syncthreads();
    each([&](unsigned key) { if ((key & fixed) == cut) atomicAdd(&hist[key << settled >> (32 - RADIX)], 1); });
    __syncthreads();
    if (threadIdx.x < 32) {
      int bin = BINS - SPAN * (threadIdx.x + 1), mine = 0;
      for (int i = 0; i < SPAN; ++i) mine += hist[bin + i];
      int left = k - (warp_scan(mine) - mine);
      const int owner = __ffs(__ballot_sync(0xffffffffu, left <= mine)) - 1;
      if (threadIdx.x == owner) {
        for (bin += SPAN - 1; hist[bin] < left; --bin) left -= hist[bin];
        digit = bin;
      }
      k = __shfl_sync(0xffffffffu, left, owner);
    }
    __syncthreads();
    cut |= digit << (32 - RADIX) >> settled;
  }
  return cut;
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_chunk(const float* __restrict__ logits, float* __restrict__ lists, int* __restrict__ counts, int vocab, int k) {
  __shared__ int listed;
  const int chunk = blockIdx.y * gridDim.x + blockIdx.x;
  const Packet* row = reinterpret_cast<const Packet*>(logits + (size_t)blockIdx.y * vocab);
  if (threadIdx.x == 0) listed = 0;
  float hold[ITEMS], most = LOWEST;
#pragma unroll
  for (int i = 0; i < ITEMS; i += VEC) {
    const int p = (blockIdx.x * CHUNK + i * THREADS) / VEC + threadIdx.x;
    const bool live = p < vocab / VEC;
    const Packet packet = live ? row[p] : Packet{};
#pragma unroll
    for (int v = 0; v < VEC; ++v) most = fmaxf(most, hold[i + v] = live ? packet.f[v] : LOWEST);
  }

  const unsigned least = kth_largest<THREADS>([&](auto f) { f(order_key(most)); }, k, 2 * RADIX);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (order_key(hold[i]) >= least) lists[(size_t)chunk * CHUNK + atomicAdd(&listed, 1)] = hold[i];
  __syncthreads();
  if (threadIdx.x == 0) counts[chunk] = listed;
}

extern "C" __global__ void __launch_bounds__(MERGERS)
topk_sample(const float* __restrict__ logits, const float* __restrict__ uniform, const float* __restrict__ lists,
            const int* __restrict__ counts, int* __restrict__ token, int vocab, int k, int chunks,
            float inv_temperature) {
  __shared__ float mass[WARPS], sums[WARPS];
  __shared__ unsigned top, chosen;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, share = (chunks + WARPS - 1) / WARPS;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  if (tid == 0) top = 0u, chosen = 0u;
  const auto each = [&](auto f) {
    for (int c = warp * share; c < min((warp + 1) * share, chunks); ++c) {
      const int chunk = blockIdx.x * chunks + c;
      for (int i = lane; i < counts[chunk]; i += 32) f(lists[(size_t)chunk * CHUNK + i]);
    }
  };

  const unsigned cut = kth_largest<MERGERS>([&](auto f) { each([&](float x) { f(order_key(x)); }); }, k, 32);
  unsigned most = 0u;
  each([&](float f) { most = max(most, order_key(f)); });
  atomicMax(&top, most);
  __syncthreads();
  const float best = __uint_as_float(top & 0x80000000u ? top & 0x7fffffffu : ~top);
  const auto weight = [=](float f) { return order_key(f) >= cut ? __expf((f - best) * inv_temperature) : 0.0f; };
  float sum = 0.0f;
  each([&](float f) { sum += weight(f); });
  sum = warp_scan(sum);
  if (lane == 31) mass[warp] = sum;
  __syncthreads();
  const float part = mass[lane], upto = warp_scan(part);
  const float target = uniform[blockIdx.x] * __shfl_sync(0xffffffffu, upto, 31);
  const int owner = 31 - __clz(__ballot_sync(0xffffffffu, part > 0.0f && upto - part <= target));
  float base = __shfl_sync(0xffffffffu, upto - part, owner);

  const int length = (share * CHUNK + MERGERS - 1) / MERGERS, begin = owner * share * CHUNK + tid * length;
  const int end = min(min(begin + length, (owner + 1) * share * CHUNK), vocab);
  sum = 0.0f;
  for (int i = begin; i < end; ++i) sum += weight(row[i]);
  const float in_warp = warp_scan(sum);
  if (lane == 31) sums[warp] = in_warp;
  __syncthreads();
  for (int w = 0; w < warp; ++w) base += sums[w];
  base += in_warp - sum;
  for (int i = begin; i < end && base <= target; ++i) {
    const float mine = weight(row[i]);
    if (mine > 0.0f) atomicMax(&chosen, i);
    base += mine;
  }
  __syncthreads();
  if (tid == 0) token[blockIdx.x] = chosen;
}
