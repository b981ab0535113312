// nucleus_sample/radix_pivot: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// One block owns one row of fp32 logits. One pass sums its mass by cells of equal width in logit, which reach 16 nats
// above and below a guess of the greatest logit, that of the first 32; if the row has one above the cells, it is passed
// again from that. The cell in which the mass from above reaches p holds the pivot, the smallest logit of the set. A
// second pass, backwards so that what was read last is still in L2, weighs a slice per warp above the cell and lists
// the slice's logits in it. The pivot is found among these, and the block scans only the slice in which the draw falls.
// Gains over rejection: two reads of the row whatever its logits, and few weights in the second.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, V / (1 - p) < exp(16), finite logits, vocab % VEC == 0, vocab >= 32, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 512; // threads per block
constexpr int RADIX = 10;    // log2 of the cells in 32 nats
constexpr int VEC = 4;       // consecutive logits a thread loads at once
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 threads at most");
static_assert(RADIX >= 5 && RADIX <= 12, "RADIX must be 5 to 12: the cells take 16 KB at most");
static_assert(VEC == 1 || VEC % 4 == 0, "VEC must be 1 or a multiple of 4: aligned accesses");

constexpr int WARPS = THREADS / 32;
constexpr int BINS = 1 << RADIX;
constexpr float HEADROOM = 16.0f;

struct __align__(VEC % 4 ? 4 : 16) Packet {
  float f[VEC];
};

// Unsigned keys that sort like the floats they come from.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f + 0.0f); // -0 counts as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int offset = 16; offset > 0; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// Inclusive prefix sum over a warp.
__device__ __forceinline__ float warp_scan(float v) {
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 >= offset) v += up;
  }
  return v;
}

// Calls f on every logit of a warp's packets, from the last where BACKWARD.
template <bool BACKWARD, class F> __device__ __forceinline__ void visit(const Packet* slice, int size, F f) {
  for (int i = threadIdx.x % 32; i < size; i += 32) {
    const Packet packet = slice[BACKWARD ? size - 1 - i : i];
    for (int v = 0; v < VEC; ++v) f(packet.f[v]);
  }
}

// The greatest x up to range whose mass reaches need, or 0: each warp sums the mass of one of WARPS trials at a time.
template <class F> __device__ __forceinline__ unsigned greatest(unsigned range, float need, F mass) {
  __shared__ float held[WARPS];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned found = 0u;
  for (unsigned step; range > 0u; range = step - 1u) {
    step = range / WARPS + 1u;
    const float sum = warp_scan(mass(found + warp * step));
    if (lane == 31) held[warp] = sum;
    __syncthreads();
    const unsigned reached = __ballot_sync(0xffffffffu, lane < WARPS && held[lane] >= need);
    found += (31 - __clz(reached | 1u)) * step;
    __syncthreads();
  }
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, float* __restrict__ lists,
               int* __restrict__ token, int vocab, float p, float inv_temperature) {
  __shared__ float hist[BINS], mass[WARPS], sums[WARPS];
  __shared__ int listed[WARPS], chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int share = (vocab / VEC + WARPS - 1) / WARPS * VEC, size = min(share, vocab - warp * share) / VEC;
  const Packet* slice = reinterpret_cast<const Packet*>(row + warp * share);
  float* list = lists + (size_t)blockIdx.x * vocab;
  if (tid == 0) chosen = 0;
  const float scale = inv_temperature * BINS / (2.0f * HEADROOM);
  float top = warp_max(row[lane]) + HEADROOM / inv_temperature, highest = row[0], need;
  const auto depth = [&](float f) { return floorf((top - f) * scale); };
  const auto weight = [&](float f) { return __expf((f - top) * inv_temperature); };
  for (bool again = true; again; top = fmaxf(top, highest)) {
    for (int i = tid; i < BINS; i += THREADS) hist[i] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    visit<false>(slice, size, [&](float f) {
      highest = fmaxf(highest, f);
      sum += weight(f);
      if (f <= top && depth(f) < BINS) atomicAdd(&hist[int(depth(f))], weight(f));
    });
    sum = warp_scan(sum), highest = warp_max(highest);
    if (lane == 31) mass[warp] = sum, sums[warp] = highest, listed[warp] = 0;
    __syncthreads();
    need = 0.0f;
    for (int w = 0; w < WARPS; ++w) need += p * mass[w], highest = fmaxf(highest, sums[w]);
    again = highest > top;
  }
  const float cell = BINS - 1 - int(greatest(BINS - 1, need, [&](int x) {
    float held = 0.0f;
    for (int i = lane; i < BINS - x; i += 32) held += hist[i];
    return held;
  }));
  float above = 0.0f, sum = 0.0f;
  for (int i = lane; i < cell; i += 32) above += hist[i];
  visit<true>(slice, size, [&](float f) {
    if (depth(f) < cell) sum += weight(f);
    if (depth(f) == cell) list[warp * share + atomicAdd(&listed[warp], 1)] = f;
  });
  __syncthreads();
  const unsigned pivot = greatest(0xffffffffu, need, [&](unsigned x) {
    float held = above;
    for (int w = 0; w < WARPS; ++w)
      for (int i = lane; i < listed[w]; i += 32)
        if (order_key(list[w * share + i]) >= x) held += weight(list[w * share + i]);
    return held;
  });
  const auto kept = [&](float f) { return depth(f) <= cell && order_key(f) >= pivot ? weight(f) : 0.0f; };
  for (int i = lane; i < listed[warp]; i += 32) sum += kept(list[warp * share + i]);
  sum = warp_scan(sum);
  if (lane == 31) mass[warp] = sum;
  __syncthreads();
  float target = 0.0f, base = 0.0f, upto = 0.0f;
  for (int w = 0; w < WARPS; ++w) target += uniform[blockIdx.x] * mass[w];
  int owner = 0;
  for (int w = 0; w < WARPS; upto += mass[w++])
    if (mass[w] > 0.0f && upto <= target) owner = w, base = upto;
  const int run = (share + THREADS - 1) / THREADS, first = owner * share + tid * run;
  const int end = min(min(first + run, (owner + 1) * share), vocab);
  sum = 0.0f;
  for (int i = first; i < end; ++i) sum += kept(row[i]);
  const float in_warp = warp_scan(sum);
  if (lane == 31) sums[warp] = in_warp;
  __syncthreads();
  for (int w = 0; w < warp; ++w) base += sums[w];
  base += in_warp - sum;
  for (int i = first; i < end && base <= target; base += kept(row[i++]))
    if (kept(row[i]) > 0.0f) atomicMax(&chosen, i);
  __syncthreads();
  if (tid == 0) token[blockIdx.x] = chosen;
}
