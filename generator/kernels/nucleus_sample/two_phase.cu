// nucleus_sample/two_phase: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// Many blocks share a row of fp32 logits. In the first kernel each sums its chunk's mass by cells of equal width in
// logit, one per thread, down to 16 nats below the chunk's greatest; cells lie on one grid for all chunks, and a weight
// is a fixed-point fraction of its cell's upper edge, so that the atomics are native. A row's last block adds up its
// cells and finds the one in which the mass from above reaches p. In the second kernel each block weighs its chunk
// above that cell and lists the logits in it, last chunk first, for that one is still in L2. A row's last block finds
// the pivot, the smallest logit of the set, among those listed, and scans the chunk in which the draw falls.
// Gains over radix_pivot: every multiprocessor works, however few the rows.
//
// Launch: nucleus_cells, nucleus_sample: grid = (ceil(V / (THREADS * ITEMS)), B), block = THREADS; tickets = 0 before.
// Needs:  any arch, V / (1 - p) < exp(16), finite logits, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block, and cells
constexpr int ITEMS = 16;    // logits a thread holds
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 threads at most");
static_assert(THREADS * ITEMS <= 16384, "THREADS * ITEMS weights overflow a cell's 32 bits");

constexpr int CHUNK = THREADS * ITEMS;
constexpr int WARPS = THREADS / 32;
constexpr float WIDTH = 16.0f / THREADS; // nats of weight in a cell
constexpr float UNIT = 131072.0f; // fixed-point one: 16384 weights below it fit 32 bits
constexpr float LOWEST = -3.402823466e+38f;

// Unsigned keys that sort like the floats they come from.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f + 0.0f); // -0 counts as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Inclusive prefix sum over the block; total receives the block's sum.
__device__ __forceinline__ float block_scan(float v, float& total) {
  __shared__ float sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
    if (lane >= offset) v += up;
  }
  if (lane == 31) sums[warp] = v;
  __syncthreads();
  float before = total = 0.0f;
  for (int w = 0; w < WARPS; total += sums[w++])
    if (w == warp) before = total;
  __syncthreads();
  return before + v;
}

// Whether this block is the row's last to get here; if so, it sees what the others have written.
__device__ __forceinline__ bool last_of_row(unsigned* ticket) {
  __threadfence();
  __syncthreads();
  return __syncthreads_or(threadIdx.x == 0 && atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1);
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_cells(const float* __restrict__ logits, int* tops, float* totals, unsigned* cells, unsigned* tickets,
              float* pivots, float* needs, int* listed, int vocab, float p, float inv_temperature) {
  __shared__ unsigned hist[THREADS];
  __shared__ int highest;
  const int tid = threadIdx.x, lane = tid % 32, row = blockIdx.y, first = row * gridDim.x, chunk = first + blockIdx.x;
  float at[ITEMS], below = 0.0f, total = 0.0f, mass = 0.0f, all, held;
  int top = -0x7fffffff;
  hist[tid] = 0u;
  if (tid == 0) highest = top;
  for (int i = 0; i < ITEMS; ++i) {
    const int n = blockIdx.x * CHUNK + i * THREADS + tid;
    at[i] = n < vocab ? logits[(size_t)row * vocab + n] * (inv_temperature / WIDTH) : LOWEST;
    top = max(top, __float2int_rd(at[i]));
  }
  __syncthreads();
  atomicMax(&highest, __reduce_max_sync(0xffffffffu, top));
  __syncthreads();
  top = highest;
  for (int i = 0; i < ITEMS; ++i) {
    const float cell = floorf(at[i]), depth = top - cell;
    if (depth < THREADS) atomicAdd(&hist[int(depth)], unsigned(UNIT * __expf(WIDTH * (at[i] - cell - 1.0f)) + 0.5f));
    else below += __expf(WIDTH * (at[i] - top - 1.0f));
  }
  __syncthreads();
  cells[chunk * THREADS + tid] = hist[tid];
  block_scan(below + hist[tid] / UNIT * __expf(WIDTH * -tid), all);
  if (tid == 0) tops[chunk] = top, totals[chunk] = all;
  if (!last_of_row(&tickets[row])) return;
  for (int c = lane; c < gridDim.x; c += 32) top = max(top, tops[first + c]);
  top = __reduce_max_sync(0xffffffffu, top);
  for (int c = tid; c < gridDim.x; c += THREADS) total += totals[first + c] * __expf(WIDTH * (tops[first + c] - top));
  block_scan(total, all);
  for (int c = 0; c < gridDim.x; ++c)
    if (const int drop = top - tops[first + c]; drop <= tid) mass += cells[(first + c) * THREADS + tid - drop];
  mass *= __expf(WIDTH * -tid) / UNIT;
  const float upto = block_scan(mass, held), need = p * all - (upto - mass);
  const int cell = min(__syncthreads_count(upto < p * all), THREADS - 1);
  if (tid == cell) pivots[row] = top - cell, needs[row] = need * __expf(WIDTH * cell), listed[row] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, const float* __restrict__ pivots,
               const float* __restrict__ needs, float* masses, float2* lists, int* listed, unsigned* tickets,
               int* __restrict__ token, int vocab, float inv_temperature) {
  __shared__ float held[WARPS];
  __shared__ int chosen;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int row = gridDim.y - 1 - blockIdx.y, chunk = gridDim.x - 1 - blockIdx.x;
  const float* values = logits + (size_t)row * vocab;
  float2* list = lists + (size_t)row * vocab; // logit, chunk
  float* mass = masses + row * gridDim.x;
  const float cell = pivots[row], need = needs[row], scale = inv_temperature / WIDTH;
  const auto weight = [&](float f) { return __expf(WIDTH * (f * scale - cell - 1.0f)); };
  float above = 0.0f, sum = 0.0f, total;
  for (int i = 0; i < ITEMS; ++i) {
    const int n = chunk * CHUNK + i * THREADS + tid;
    const float f = n < vocab ? values[n] : LOWEST;
    if (floorf(f * scale) > cell) above += weight(f);
    if (floorf(f * scale) == cell) list[atomicAdd(&listed[row], 1)] = make_float2(f, chunk);
  }
  block_scan(above, total);
  if (tid == 0) mass[chunk] = total, chosen = 0;
  if (!last_of_row(&tickets[row])) return;
  unsigned pivot = 0u;
  for (unsigned range = 0xffffffffu, step; range > 0u; range = step - 1u) {
    step = range / WARPS + 1u; // each warp tries one key as the pivot
    float mine = 0.0f;
    for (int i = lane; i < listed[row]; i += 32)
      if (order_key(list[i].x) >= pivot + warp * step) mine += weight(list[i].x);
    for (int offset = 16; offset > 0; offset >>= 1) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
    if (lane == 0) held[warp] = mine;
    __syncthreads();
    const unsigned reached = __ballot_sync(0xffffffffu, lane < WARPS && held[lane] >= need);
    pivot += (31 - __clz(reached | 1u)) * step;
    __syncthreads();
  }
  const auto kept = [&](float f) { return floorf(f * scale) >= cell && order_key(f) >= pivot ? weight(f) : 0.0f; };
  for (int i = tid; i < listed[row]; i += THREADS) atomicAdd(&mass[int(list[i].y)], kept(list[i].x));
  __syncthreads();
  float target = 0.0f, base = 0.0f, upto = 0.0f;
  for (int c = 0; c < gridDim.x; ++c) target += uniform[row] * mass[c];
  int owner = 0;
  for (int c = 0; c < gridDim.x; upto += mass[c++])
    if (mass[c] > 0.0f && upto <= target) owner = c, base = upto;
  const int begin = owner * CHUNK + tid * ITEMS, end = min(begin + ITEMS, vocab);
  for (int i = begin; i < end; ++i) sum += kept(values[i]);
  base += block_scan(sum, total) - sum;
  for (int i = begin; i < end && base <= target; base += kept(values[i++]))
    if (kept(values[i]) > 0.0f) atomicMax(&chosen, i);
  __syncthreads();
  if (tid == 0) token[row] = chosen;
}
