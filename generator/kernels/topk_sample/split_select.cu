// topk_sample/split_select: one token per row, drawn from the softmax of its k largest logits (fp32).
//
// Many blocks share a row. Each holds a chunk of THREADS * ITEMS logits in registers and bounds the
// row's cut from below by the k-th largest of its threads' own maxima, of which two digits of a radix
// select suffice: the few logits at or above that bound are its candidates, and it lists them all.
// One block per row then selects among the candidates, weighs every chunk by them, and reads again
// only the chunk in which the draw falls. All logits equal to the row's k-th largest are kept.
// Gains over radix_select: every multiprocessor works on the row, and logits are read from DRAM once.
//
// Launch: topk_chunk  grid = (ceil(V / (THREADS * ITEMS)), B), block = THREADS
//         topk_sample grid = B, block = MERGERS; no dynamic shared memory.
// Needs:  any arch, 1 <= k <= vocab, k <= THREADS, vocab % VEC == 0, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int ITEMS = 16;    // logits a thread holds
constexpr int VEC = 4;       // logits per global access
constexpr int RADIX = 8;     // bits settled per round of a selection
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(VEC == 1 || VEC == 2 || VEC == 4, "VEC must be 1, 2 or 4: one aligned access");
static_assert(ITEMS % VEC == 0, "ITEMS must be a multiple of VEC");
static_assert(RADIX >= 5 && RADIX <= 12, "RADIX must be 5 to 12: a warp scans the bins");

constexpr int CHUNK = THREADS * ITEMS;
constexpr int MERGERS = 1024; // threads of the second kernel: a warp for each chunk of most rows
constexpr int WARPS = MERGERS / 32;
constexpr int BINS = 1 << RADIX;

struct __align__(VEC * 4) Packet {
  float f[VEC];
};

// Unsigned keys that sort like the floats they come from; 0 is below every logit.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
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

// The k-th largest key of the block, its bits below `stop` cleared; each(f) calls f on every key of this thread.
template <int BLOCK, class Each> __device__ __forceinline__ unsigned kth_largest(Each each, int k, int stop) {
  constexpr int SPAN = BINS / 32;
  __shared__ int hist[BINS];
  __shared__ unsigned digit;
  unsigned cut = 0u, fixed = 0u;
  for (int low = 32; low > stop;) {
    const int width = min(RADIX, low);
    low -= width;
    for (int i = threadIdx.x; i < BINS; i += BLOCK) hist[i] = 0;
    __syncthreads();
    each([&](unsigned key) {
      if ((key & fixed) == cut) atomicAdd(&hist[(key >> low) & ((1u << width) - 1u)], 1);
    });
    __syncthreads();
    if (threadIdx.x < 32) {
      const int first = BINS - SPAN * (threadIdx.x + 1);
      int mine = 0;
      for (int i = 0; i < SPAN; ++i) mine += hist[first + i];
      const int upto = warp_scan(mine), owner = __ffs(__ballot_sync(0xffffffffu, upto >= k)) - 1;
      int left = k - (upto - mine), bin = first + SPAN - 1;
      if (threadIdx.x == owner) {
        for (; hist[bin] < left; --bin) left -= hist[bin];
        digit = bin;
      }
      k = __shfl_sync(0xffffffffu, left, owner);
    }
    __syncthreads();
    cut |= digit << low;
    fixed |= ((1u << width) - 1u) << low;
  }
  return cut;
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_chunk(const float* __restrict__ logits, unsigned* __restrict__ lists, int* __restrict__ counts, int vocab, int k) {
  __shared__ int listed;
  const int chunk = blockIdx.y * gridDim.x + blockIdx.x, begin = blockIdx.x * CHUNK;
  const Packet* row = reinterpret_cast<const Packet*>(logits + (size_t)blockIdx.y * vocab);
  if (threadIdx.x == 0) listed = 0;

  unsigned key[ITEMS], most = 0u;
#pragma unroll
  for (int p = 0; p < ITEMS / VEC; ++p) {
    const int first = begin + (p * THREADS + threadIdx.x) * VEC;
    const bool live = first < vocab;
    const Packet packet = live ? row[first / VEC] : Packet{};
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      key[p * VEC + v] = live ? order_key(packet.f[v]) : 0u;
      most = max(most, key[p * VEC + v]);
    }
  }

  const unsigned least = kth_largest<THREADS>([&](auto f) { f(most); }, k, 32 - 2 * RADIX);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (key[i] >= least) lists[(size_t)chunk * CHUNK + atomicAdd(&listed, 1)] = key[i];
  __syncthreads();
  if (threadIdx.x == 0) counts[chunk] = listed;
}

extern "C" __global__ void __launch_bounds__(MERGERS)
topk_sample(const float* __restrict__ logits, const float* __restrict__ uniform, const unsigned* __restrict__ lists,
            const int* __restrict__ counts, float* __restrict__ masses, int* __restrict__ token, int vocab, int k,
            int chunks, float inv_temperature) {
  __shared__ float sums[WARPS];
  __shared__ unsigned top;
  __shared__ int chosen;
  const int row = blockIdx.x, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const unsigned* list = lists + (size_t)row * chunks * CHUNK;
  const int* count = counts + row * chunks;
  float* mass = masses + row * chunks;
  if (tid == 0) top = 0u, chosen = 0;

  unsigned most = 0u;
  const unsigned cut = kth_largest<MERGERS>([&](auto f) {
    for (int c = warp; c < chunks; c += WARPS)
      for (int i = lane; i < count[c]; i += 32) {
        most = max(most, list[c * CHUNK + i]);
        f(list[c * CHUNK + i]);
      }
  }, k, 0);
  atomicMax(&top, most);
  __syncthreads();
  const float best = logit_of(top);

  for (int c = warp; c < chunks; c += WARPS) {
    float kept = 0.0f;
    for (int i = lane; i < count[c]; i += 32)
      if (list[c * CHUNK + i] >= cut) kept += __expf((logit_of(list[c * CHUNK + i]) - best) * inv_temperature);
    kept = warp_scan(kept);
    if (lane == 31) mass[c] = kept;
  }
  __syncthreads();

  float total = 0.0f, base = 0.0f, upto = 0.0f;
  for (int c = 0; c < chunks; ++c) total += mass[c];
  const float target = uniform[row] * total;
  int owner = 0;
  for (int c = 0; c < chunks; ++c) {
    if (mass[c] > 0.0f && upto <= target) owner = c, base = upto;
    upto += mass[c];
  }

  constexpr int SHARE = (CHUNK + MERGERS - 1) / MERGERS;
  const int first = owner * CHUNK + tid * SHARE, end = min((owner + 1) * CHUNK, vocab);
  float weight[SHARE], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) {
    const float f = first + i < end ? logits[(size_t)row * vocab + first + i] : 0.0f;
    weight[i] = first + i < end && order_key(f) >= cut ? __expf((f - best) * inv_temperature) : 0.0f;
    sum += weight[i];
  }
  const float in_warp = warp_scan(sum);
  if (lane == 31) sums[warp] = in_warp;
  __syncthreads();
  for (int w = 0; w < warp; ++w) base += sums[w];
  base += in_warp - sum;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) {
    if (weight[i] > 0.0f && base <= target) atomicMax(&chosen, first + i);
    base += weight[i];
  }
  __syncthreads();
  if (tid == 0) token[row] = chosen;
}
