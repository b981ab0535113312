// topk_sample/radix_select: one token per row, drawn from the softmax of its k largest logits (fp32).
//
// One block owns one row. The k-th largest logit is found digit by digit, highest first: a histogram
// in shared memory counts the next RADIX bits of the keys that still match, and the bin of the k-th
// fixes them. Then each warp weighs its own slice of the row, logits equal to the k-th included, and
// the block scans only the slice in which the draw falls.
// Gains over selection_passes: 32 / RADIX + 1 reads of the row instead of k / ITEMS + 2, wide loads.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, 1 <= k <= vocab, vocab % VEC == 0, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 512; // threads per block
constexpr int RADIX = 8;     // bits settled per pass over the row
constexpr int COPIES = 2;    // copies of the histogram, to spread the atomics of a warp
constexpr int VEC = 4;       // logits per global access
constexpr int UNROLL = 2;    // accesses a thread issues before it uses the first
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(RADIX >= 5 && RADIX <= 12, "RADIX must be 5 to 12: a warp scans the bins");
static_assert((COPIES << RADIX) <= 8192, "COPIES histograms exceed 32 KB of shared memory");
static_assert(VEC == 1 || VEC == 2 || VEC == 4, "VEC must be 1, 2 or 4: one aligned access");

constexpr int WARPS = THREADS / 32;
constexpr int BINS = 1 << RADIX;

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

// Calls f on every logit of packets first, first + STEP, ... below end.
template <int STEP, class F>
__device__ __forceinline__ void visit(const float* row, int first, int end, F f) {
  const Packet* packets = reinterpret_cast<const Packet*>(row);
  for (int p = first; p < end; p += STEP * UNROLL) {
    Packet hold[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (p + u * STEP < end) hold[u] = packets[p + u * STEP];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (p + u * STEP < end)
#pragma unroll
        for (int v = 0; v < VEC; ++v) f(hold[u].f[v]);
  }
}

// One warp: the bin that holds the rank-th largest count, and the rank inside it.
__device__ __forceinline__ int pick(const int* hist, int& rank) {
  constexpr int SPAN = BINS / 32;
  const int lane = threadIdx.x, first = BINS - SPAN * (lane + 1);
  int mine = 0;
  for (int i = 0; i < SPAN; ++i) mine += hist[first + i];
  const int upto = warp_scan(mine), owner = __ffs(__ballot_sync(0xffffffffu, upto >= rank)) - 1;
  int left = rank - (upto - mine), bin = first + SPAN - 1;
  if (lane == owner)
    for (; hist[bin] < left; --bin) left -= hist[bin];
  rank = __shfl_sync(0xffffffffu, left, owner);
  return __shfl_sync(0xffffffffu, bin, owner);
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_sample(const float* __restrict__ logits, const float* __restrict__ uniform, int* __restrict__ token, int vocab,
            int k, float inv_temperature) {
  __shared__ int hist[COPIES][BINS];
  __shared__ float mass[WARPS];
  __shared__ unsigned top, digit;
  __shared__ int chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  const int packets = vocab / VEC, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  if (tid == 0) top = 0u, chosen = 0;

  unsigned cut = 0u, fixed = 0u, most = 0u;
  int rank = k;
  for (int low = 32; low > 0;) {
    const int width = min(RADIX, low);
    low -= width;
    for (int i = tid; i < COPIES * BINS; i += THREADS) hist[i / BINS][i % BINS] = 0;
    __syncthreads();
    visit<THREADS>(row, tid, packets, [&](float f) {
      const unsigned key = order_key(f);
      most = max(most, key);
      if ((key & fixed) == cut) atomicAdd(&hist[tid % COPIES][(key >> low) & ((1u << width) - 1u)], 1);
    });
    __syncthreads();
    for (int i = tid; i < BINS && COPIES > 1; i += THREADS)
      for (int c = 1; c < COPIES; ++c) hist[0][i] += hist[c][i];
    __syncthreads();
    if (warp == 0) {
      const int bin = pick(hist[0], rank);
      if (lane == 0) digit = bin;
    }
    __syncthreads();
    cut |= digit << low;
    fixed |= ((1u << width) - 1u) << low;
  }
  atomicMax(&top, most);
  __syncthreads();

  const float best = __uint_as_float(top & 0x80000000u ? top & 0x7fffffffu : ~top);
  const auto weight = [=](float f) { return order_key(f) >= cut ? __expf((f - best) * inv_temperature) : 0.0f; };
  const int slice = (packets + WARPS - 1) / WARPS;
  float sum = 0.0f;
  visit<32>(row, warp * slice + lane, min((warp + 1) * slice, packets), [&](float f) { sum += weight(f); });
  sum = warp_scan(sum);
  if (lane == 31) mass[warp] = sum;
  __syncthreads();

  float total = 0.0f, base = 0.0f, upto = 0.0f;
  for (int w = 0; w < WARPS; ++w) total += mass[w];
  const float target = uniform[blockIdx.x] * total;
  int owner = 0;
  for (int w = 0; w < WARPS; ++w) {
    if (mass[w] > 0.0f && upto <= target) owner = w, base = upto;
    upto += mass[w];
  }
  const int end = min((owner + 1) * slice, packets) * VEC;
  for (int tile = owner * slice * VEC; tile < end && base <= target; tile += THREADS) {
    const int i = tile + tid;
    const float mine = i < end ? weight(row[i]) : 0.0f, in_warp = warp_scan(mine);
    __syncthreads();
    if (lane == 31) mass[warp] = in_warp;
    __syncthreads();
    float before = base;
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) before += mass[w];
      base += mass[w];
    }
    if (mine > 0.0f && before + in_warp - mine <= target) atomicMax(&chosen, i);
  }
  __syncthreads();
  if (tid == 0) token[blockIdx.x] = chosen;
}
