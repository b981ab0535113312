// moe_scatter/multi_block: groups the M * K (token, expert) pairs by expert, in order, and copies each pair's fp16 row.
//
// The ranking is spread over many blocks of CHUNK pairs: count_chunks makes a histogram per chunk; in
// place_pairs each block adds up the histograms before its own, scans the experts, and ranks its pairs by
// match within a warp and by the counts of the warps before. copy_tokens then reads a token's row once,
// UNROLL packets of 16 bytes in flight, and writes it to all of its K places.
// Gains over count_prefix: no walk through all pairs by one block; x is read once instead of K times.
//
// Launch: count_chunks: grid = ceil(M * K / CHUNK), block = CHUNK, dynamic shared memory = E * 4 bytes;
//         place_pairs: same grid and block, dynamic shared memory = (CHUNK / 32 * E + 2 * E + 1) * 4 bytes;
//         copy_tokens: grid = M, block = THREADS.
// Needs:  any arch, N % 8 == 0. Row r of y belongs to the pair p with row_map[p] = r.

// ---- tuning parameters ------------------------------------------------------
constexpr int CHUNK = 256;   // pairs, and threads, of a ranking block
constexpr int THREADS = 256; // threads per block of the copy
constexpr int UNROLL = 1;    // packets a thread of the copy keeps in flight
// -----------------------------------------------------------------------------

static_assert(CHUNK % 32 == 0 && CHUNK <= 1024, "CHUNK must be whole warps, 1024 pairs at most");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4, "UNROLL must be 1, 2 or 4");

extern "C" __global__ void __launch_bounds__(CHUNK)
count_chunks(const int* __restrict__ ids, int* __restrict__ counts, int pairs, int experts) {
  extern __shared__ int histogram[];
  for (int e = threadIdx.x; e < experts; e += CHUNK) histogram[e] = 0;
  __syncthreads();
  const int pair = blockIdx.x * CHUNK + threadIdx.x;
  if (pair < pairs) atomicAdd(&histogram[ids[pair]], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += CHUNK) counts[blockIdx.x * experts + e] = histogram[e];
}

extern "C" __global__ void __launch_bounds__(CHUNK)
place_pairs(const int* __restrict__ ids, const int* __restrict__ counts, int* __restrict__ offsets, int* __restrict__ row_map,
            int pairs, int experts) {
  extern __shared__ int seen[]; // [CHUNK / 32][experts], then [experts] earlier chunks, then [experts + 1] first rows
  int* before = seen + CHUNK / 32 * experts;
  int* first = before + experts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = blockIdx.x * CHUNK + threadIdx.x;

  for (int i = threadIdx.x; i < CHUNK / 32 * experts; i += CHUNK) seen[i] = 0;
  for (int e = threadIdx.x; e < experts; e += CHUNK) {
    int sum = 0;
#pragma unroll 4
    for (int c = 0; c < gridDim.x; ++c) {
      if (c == blockIdx.x) before[e] = sum;
      sum += counts[c * experts + e];
    }
    first[e + 1] = sum;
  }
  __syncthreads();

  if (warp == 0) {
    int carry = 0;
    for (int base = 0; base < experts; base += 32) {
      const int e = base + lane;
      int sum = e < experts ? first[e + 1] : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += below;
      }
      if (e < experts) first[e + 1] = carry + sum;
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) first[0] = 0;
  }
  const int expert = pair < pairs ? ids[pair] : -1;
  const unsigned same = __match_any_sync(0xffffffffu, expert);
  if (expert >= 0 && lane == __ffs(same) - 1) seen[warp * experts + expert] = __popc(same);
  __syncthreads();

  if (blockIdx.x == 0)
    for (int e = threadIdx.x; e <= experts; e += CHUNK) offsets[e] = first[e];
  if (expert < 0) return;
  int row = first[expert] + before[expert] + __popc(same & ((1u << lane) - 1));
  for (int w = 0; w < warp; ++w) row += seen[w * experts + expert];
  row_map[pair] = row;
}

extern "C" __global__ void __launch_bounds__(THREADS)
copy_tokens(const uint4* __restrict__ x, const int* __restrict__ row_map, uint4* __restrict__ y, int experts_per_token, int cols) {
  const int packets = cols / 8, token = blockIdx.x;
  const int* rows = row_map + token * experts_per_token;
  for (int base = threadIdx.x; base < packets; base += THREADS * UNROLL) {
    uint4 keep[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (base + u * THREADS < packets) keep[u] = x[(size_t)token * packets + base + u * THREADS];
    for (int k = 0; k < experts_per_token; ++k) {
      uint4* row = y + (size_t)rows[k] * packets;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        if (base + u * THREADS < packets) row[base + u * THREADS] = keep[u];
    }
  }
}
