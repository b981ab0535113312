// nucleus_sample/radix_pivot: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// One block owns one row of fp32 logits. The smallest logit of the set, the pivot, lies between the
// greatest logit and the one below which not even a whole row of tokens would hold 1 - p of it. A
// histogram in shared memory splits that interval of sortable keys into 2^RADIX bins and sums the
// mass of each; the bin in which the mass from above reaches p becomes the next interval, until it is
// one key wide. All logits equal to it are kept. Each warp then weighs its own slice of the row, and
// the block scans only the slice in which the draw falls.
// Gains over bisection: 32 / RADIX + 2 reads of the row instead of 32 + 3, few weights, wide loads.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, 0 < p < 1, vocab % VEC == 0, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 512; // threads per block
constexpr int RADIX = 8;     // bits of the interval settled per pass over the row
constexpr int COPIES = 2;    // copies of the histogram, to spread the atomics of a warp
constexpr int VEC = 4;       // logits per global access
constexpr int UNROLL = 2;    // accesses a thread issues before it uses the first
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
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
  const unsigned bits = __float_as_uint(f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Inclusive prefix sum over a warp.
__device__ __forceinline__ float warp_scan(float v) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
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

// One warp: the highest bin down to which the mass reaches need; need becomes what that bin must give.
__device__ __forceinline__ int pick(const float* hist, float& need) {
  constexpr int SPAN = BINS / 32;
  const int lane = threadIdx.x, first = BINS - SPAN * (lane + 1);
  float mine = 0.0f;
#pragma unroll 8
  for (int i = 0; i < SPAN; ++i) mine += hist[first + i];
  const float upto = warp_scan(mine);
  const unsigned reached = __ballot_sync(0xffffffffu, upto >= need);
  const int owner = reached ? __ffs(reached) - 1 : 31;
  float left = need - (upto - mine);
  int bin = first + SPAN - 1;
  if (lane == owner)
    for (; bin > first && hist[bin] < left; --bin) left -= hist[bin];
  need = __shfl_sync(0xffffffffu, left, owner);
  return __shfl_sync(0xffffffffu, bin, owner);
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, int* __restrict__ token, int vocab,
               float p, float inv_temperature) {
  __shared__ float hist[COPIES][BINS];
  __shared__ float mass[WARPS];
  __shared__ unsigned digit;
  __shared__ int chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  const int packets = vocab / VEC, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  if (tid == 0) chosen = 0;

  float best = row[0];
  visit<THREADS>(row, tid, packets, [&](float f) { best = fmaxf(best, f); });
  for (int offset = 16; offset > 0; offset >>= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
  if (lane == 0) mass[warp] = best;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) best = fmaxf(best, mass[w]);

  const float negligible = best - __logf(vocab / (1.0f - p)) / inv_temperature;
  unsigned pivot = order_key(negligible), range = order_key(best) - pivot;
  float need = 0.0f, all = 0.0f;
  bool first = true;
  for (int width = 32 - __clz(range); width > 0;) {
    const int low = max(width - RADIX, 0);
    for (int i = tid; i < COPIES * BINS; i += THREADS) hist[i / BINS][i % BINS] = 0.0f;
    __syncthreads();
    visit<THREADS>(row, tid, packets, [&](float f) {
      const unsigned offset = order_key(f) - pivot;
      const bool inside = order_key(f) >= pivot && offset <= range;
      if (!inside && !first) return;
      const float weight = __expf((f - best) * inv_temperature);
      if (inside) atomicAdd(&hist[tid % COPIES][offset >> low], weight);
      if (first) all += weight;
    });
    if (first) {
      all = warp_scan(all);
      if (lane == 31) mass[warp] = all;
    }
    __syncthreads();
    for (int i = tid; i < BINS && COPIES > 1; i += THREADS)
      for (int c = 1; c < COPIES; ++c) hist[0][i] += hist[c][i];
    __syncthreads();
    if (warp == 0) {
      if (first) {
        float total = 0.0f;
        for (int w = 0; w < WARPS; ++w) total += mass[w];
        need = p * total;
      }
      const int bin = pick(hist[0], need);
      if (lane == 0) digit = bin;
    }
    __syncthreads();
    first = false;
    pivot += digit << low;
    range = (1u << low) - 1u;
    width = low;
  }

  const int slice = (packets + WARPS - 1) / WARPS;
  float sum = 0.0f;
  visit<32>(row, warp * slice + lane, min((warp + 1) * slice, packets), [&](float f) {
    if (order_key(f) >= pivot) sum += __expf((f - best) * inv_temperature);
  });
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
    const bool live = i < end && order_key(row[i]) >= pivot;
    const float weight = live ? __expf((row[i] - best) * inv_temperature) : 0.0f;
    const float in_warp = warp_scan(weight);
    __syncthreads();
    if (lane == 31) mass[warp] = in_warp;
    __syncthreads();
    float before = base;
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) before += mass[w];
      base += mass[w];
    }
    if (live && before + in_warp - weight <= target) atomicMax(&chosen, i);
  }
  __syncthreads();
  if (tid == 0) token[blockIdx.x] = chosen;
}
