// nucleus_sample/two_phase: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// Many blocks share a row of fp32 logits. First each sums the mass of its chunk by cells of equal
// width in logit, 2^RADIX of them over the 16 nats below its own maximum; cells lie on one grid for
// all chunks, and a weight is a fixed-point fraction of its cell's upper edge, so sums of integers
// match whatever the order of the atomics. Then each block adds up the row's cells, finds the one in
// which the mass from above reaches p, and lists its chunk's logits in that cell; it goes through the
// logits backwards, so that those read last are still in L2. One block per row finds the pivot among
// the few listed, and reads again only the chunk in which the draw falls. All logits equal to the
// pivot are kept.
// Gains over radix_pivot: every multiprocessor works on the row, which is read twice, not five times.
//
// Launch: nucleus_cells  grid = (ceil(V / (THREADS * ITEMS)), B), block = THREADS
//         nucleus_list   the same
//         nucleus_sample grid = B, block = FINISHERS; no dynamic shared memory.
// Needs:  any arch, V / (1 - p) < exp(16), finite logits, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int ITEMS = 16;    // logits a thread holds
constexpr int RADIX = 8;     // log2 of the cells in 16 nats
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(RADIX >= 5 && RADIX <= 11, "RADIX must be 5 to 11: a warp scans the cells");
static_assert(THREADS * ITEMS <= 16384, "THREADS * ITEMS weights overflow a cell's 32 bits");

constexpr int CHUNK = THREADS * ITEMS;
constexpr int BINS = 1 << RADIX;
constexpr float CELLS_PER_NAT = BINS / 16.0f;
constexpr float UNIT = 131072.0f; // fixed-point one: 16384 weights below it fit 32 bits
constexpr float LOWEST = -3.402823466e+38f;
constexpr int FINISHERS = 1024; // threads of the last kernel: a warp for each chunk of most rows

// Unsigned keys that sort like the floats they come from.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Weight of a logit that lies `cells` cells above a reference.
__device__ __forceinline__ float weight_of(float cells) { return __expf(cells / CELLS_PER_NAT); }

// Inclusive prefix sum over a warp.
__device__ __forceinline__ float warp_scan(float v) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 >= offset) v += up;
  }
  return v;
}

// Combines one value of every thread of the block, in a fixed order; every thread gets the result.
template <int BLOCK, class T, class F> __device__ __forceinline__ T block_reduce(T v, F combine) {
  __shared__ T partial[BLOCK / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v = combine(v, __shfl_xor_sync(0xffffffffu, v, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  T all = partial[0];
  for (int i = 1; i < BLOCK / 32; ++i) all = combine(all, partial[i]);
  __syncthreads();
  return all;
}

// One warp: the first bin up to which the mass reaches need; need becomes what that bin must give.
__device__ __forceinline__ int pick(const float* hist, float& need) {
  constexpr int SPAN = BINS / 32;
  const int lane = threadIdx.x, first = SPAN * lane;
  float mine = 0.0f;
#pragma unroll 8
  for (int i = 0; i < SPAN; ++i) mine += hist[first + i];
  const float upto = warp_scan(mine);
  const unsigned reached = __ballot_sync(0xffffffffu, upto >= need);
  const int owner = reached ? __ffs(reached) - 1 : 31;
  float left = need - (upto - mine);
  int bin = first;
  if (lane == owner)
    for (; bin < first + SPAN - 1 && hist[bin] < left; ++bin) left -= hist[bin];
  need = __shfl_sync(0xffffffffu, left, owner);
  return __shfl_sync(0xffffffffu, bin, owner);
}

// This thread's logits of the chunk that begins at `begin` of a row; LOWEST beyond the row.
__device__ __forceinline__ void load(const float* row, int begin, int vocab, float (&x)[ITEMS]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int n = begin + i * THREADS + threadIdx.x;
    x[i] = n < vocab ? row[n] : LOWEST;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_cells(const float* __restrict__ logits, float* __restrict__ tops, float* __restrict__ rests,
              unsigned* __restrict__ cells, int vocab, float inv_temperature) {
  __shared__ unsigned hist[BINS];
  const int chunk = blockIdx.y * gridDim.x + blockIdx.x;
  const float scale = inv_temperature * CELLS_PER_NAT;
  float x[ITEMS], best = LOWEST, rest = 0.0f;
  load(logits + (size_t)blockIdx.y * vocab, blockIdx.x * CHUNK, vocab, x);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) best = fmaxf(best, x[i]);
  for (int i = threadIdx.x; i < BINS; i += THREADS) hist[i] = 0u;
  const float top = floorf(scale * block_reduce<THREADS>(best, [](float a, float b) { return fmaxf(a, b); }));

#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const float at = x[i] * scale, cell = floorf(at), depth = top - cell;
    if (depth < BINS) atomicAdd(&hist[int(depth)], unsigned(UNIT * weight_of(at - cell - 1.0f) + 0.5f));
    else rest += weight_of(at - top - 1.0f);
  }
  rest = block_reduce<THREADS>(rest, [](float a, float b) { return a + b; });
  for (int i = threadIdx.x; i < BINS; i += THREADS) cells[chunk * BINS + i] = hist[i];
  if (threadIdx.x == 0) tops[chunk] = top, rests[chunk] = rest;
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_list(const float* __restrict__ logits, const float* __restrict__ tops, const float* __restrict__ rests,
             const unsigned* __restrict__ cells, unsigned* __restrict__ lists, int* __restrict__ counts,
             float* __restrict__ masses, float* __restrict__ needs, int vocab, float p, float inv_temperature) {
  __shared__ float mass[BINS];
  __shared__ int listed, pivot_bin;
  const int chunks = gridDim.x, row = gridDim.y - 1 - blockIdx.y, column = chunks - 1 - blockIdx.x;
  const int first = row * chunks, chunk = first + column;
  float x[ITEMS], top = LOWEST, all = 0.0f;
  load(logits + (size_t)row * vocab, column * CHUNK, vocab, x);
  for (int c = 0; c < chunks; ++c) top = fmaxf(top, tops[first + c]);

  for (int i = threadIdx.x; i < BINS; i += THREADS) {
    float sum = 0.0f;
    for (int c = 0; c < chunks; ++c) {
      const float drop = top - tops[first + c];
      all += cells[(first + c) * BINS + i] * weight_of(-drop - i);
      if (drop <= i) sum += cells[(first + c) * BINS + i - int(drop)];
    }
    mass[i] = sum * weight_of(-i);
  }
  for (int c = threadIdx.x; c < chunks; c += THREADS)
    all += UNIT * rests[first + c] * weight_of(tops[first + c] - top);
  float need = p * block_reduce<THREADS>(all, [](float a, float b) { return a + b; });

  if (threadIdx.x < 32) {
    const int bin = pick(mass, need);
    const float drop = top - tops[chunk];
    float above = 0.0f;
    for (int i = threadIdx.x; i + drop < bin; i += 32) above += cells[chunk * BINS + i] * weight_of(-drop - i);
    above = warp_scan(above);
    if (threadIdx.x == 31) masses[chunk] = above / UNIT;
    if (threadIdx.x == 0) pivot_bin = bin, listed = 0, needs[row] = need / UNIT;
  }
  __syncthreads();

  const float pivot_cell = top - pivot_bin, scale = inv_temperature * CELLS_PER_NAT;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (floorf(x[i] * scale) == pivot_cell) lists[(size_t)chunk * CHUNK + atomicAdd(&listed, 1)] = order_key(x[i]);
  __syncthreads();
  if (threadIdx.x == 0) counts[chunk] = listed;
}

extern "C" __global__ void __launch_bounds__(FINISHERS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, const float* __restrict__ tops,
               const unsigned* __restrict__ lists, const int* __restrict__ counts, const float* __restrict__ needs,
               float* __restrict__ masses, int* __restrict__ token, int vocab, int chunks, float inv_temperature) {
  constexpr int WARPS = FINISHERS / 32;
  __shared__ float hist[BINS], sums[WARPS];
  __shared__ int digit, chosen;
  const int row = blockIdx.x, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const unsigned* list = lists + (size_t)row * chunks * CHUNK;
  const int* count = counts + row * chunks;
  float* mass = masses + row * chunks;
  if (tid == 0) chosen = 0;
  float top = LOWEST, need = needs[row];
  for (int c = 0; c < chunks; ++c) top = fmaxf(top, tops[row * chunks + c]);
  const auto weight = [&](float logit) { return weight_of(logit * inv_temperature * CELLS_PER_NAT - top - 1.0f); };

  unsigned highest = 0u, lowest = 0xffffffffu;
  for (int c = warp; c < chunks; c += WARPS)
    for (int i = lane; i < count[c]; i += 32) highest = max(highest, list[c * CHUNK + i]), lowest = min(lowest, list[c * CHUNK + i]);
  highest = block_reduce<FINISHERS>(highest, [](unsigned a, unsigned b) { return max(a, b); });
  lowest = block_reduce<FINISHERS>(lowest, [](unsigned a, unsigned b) { return min(a, b); });

  unsigned pivot = highest, range = highest - lowest;
  for (int width = 32 - __clz(range); width > 0;) {
    const int low = max(width - RADIX, 0);
    for (int i = tid; i < BINS; i += FINISHERS) hist[i] = 0.0f;
    __syncthreads();
    for (int c = warp; c < chunks; c += WARPS)
      for (int i = lane; i < count[c]; i += 32) {
        const unsigned key = list[c * CHUNK + i];
        if (key <= pivot && pivot - key <= range) atomicAdd(&hist[(pivot - key) >> low], weight(logit_of(key)));
      }
    __syncthreads();
    if (warp == 0) {
      const int bin = pick(hist, need);
      if (lane == 0) digit = bin;
    }
    __syncthreads();
    pivot -= unsigned(digit) << low;
    range = (1u << low) - 1u;
    width = low;
  }
  pivot = max(pivot, lowest);

  for (int c = warp; c < chunks; c += WARPS) {
    float kept = 0.0f;
    for (int i = lane; i < count[c]; i += 32)
      if (list[c * CHUNK + i] >= pivot) kept += weight(logit_of(list[c * CHUNK + i]));
    kept = warp_scan(kept);
    if (lane == 31) mass[c] += kept;
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

  constexpr int SHARE = (CHUNK + FINISHERS - 1) / FINISHERS;
  const int first = owner * CHUNK + tid * SHARE, end = min((owner + 1) * CHUNK, vocab);
  float held[SHARE], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) {
    const float f = first + i < end ? logits[(size_t)row * vocab + first + i] : 0.0f;
    held[i] = first + i < end && order_key(f) >= pivot ? weight(f) : 0.0f;
    sum += held[i];
  }
  const float in_warp = warp_scan(sum);
  if (lane == 31) sums[warp] = in_warp;
  __syncthreads();
  for (int w = 0; w < warp; ++w) base += sums[w];
  base += in_warp - sum;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) {
    if (held[i] > 0.0f && base <= target) atomicMax(&chosen, first + i);
    base += held[i];
  }
  __syncthreads();
  if (tid == 0) token[row] = chosen;
}
