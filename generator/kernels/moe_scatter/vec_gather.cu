// moe_scatter/vec_gather: groups the M * K (token, expert) pairs by expert, in order, and copies each pair's fp16 row.
//
// One block ranks the pairs as count_prefix does, but its second walk finds the ids in shared memory, where the
// first left them as 16 bits each; besides the row of every pair it writes the inverse, the token of every row.
// With that the copy turns round: a block owns ROWS neighbouring rows of y, fetches a 16-byte packet of each in
// every thread before it stores the first, and writes one contiguous stretch. The stores are marked as streaming,
// for x has to stay in L2: each of its rows is read K times, far apart.
// Gains over count_prefix: one DRAM round trip for the ids, ROWS packets in flight, sequential writes. Where L2
// cannot hold x, or M * K is large, multi_block is better.
//
// Launch: rank_pairs: grid = 1, block = WARPS * 32, dynamic shared memory = (WARPS * E + E + 1) * 4 + M * K * 2 bytes;
//         gather_rows: grid = ceil(M * K / ROWS), block = THREADS.
// Needs:  any arch, N % 8 == 0, E <= 65536. Row r of y belongs to the pair p with row_map[p] = r; source is int32
//         [M * K] scratch.

// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 32;    // warps that rank the pairs
constexpr int THREADS = 128; // threads per block of the gather
constexpr int ROWS = 8;      // rows of y a block of the gather fetches
// -----------------------------------------------------------------------------

static_assert(WARPS >= 1 && WARPS <= 32, "one block has 1 to 32 warps");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(ROWS >= 1 && ROWS <= 16, "ROWS must be 1 to 16: a thread holds a packet of each");

extern "C" __global__ void __launch_bounds__(WARPS * 32)
rank_pairs(const int* __restrict__ ids, int* __restrict__ offsets, int* __restrict__ row_map, int* __restrict__ source,
           int pairs, int experts, int experts_per_token) {
  extern __shared__ int next[]; // [WARPS][experts], then [experts + 1] first rows, then the ids of all pairs
  int* first = next + WARPS * experts;
  unsigned short* held = reinterpret_cast<unsigned short*>(first + experts + 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int share = (pairs + WARPS * 32 - 1) / (WARPS * 32) * 32, begin = warp * share, end = min(begin + share, pairs);
  int* mine = next + warp * experts;

#pragma unroll 4
  for (int p = begin + lane; p < end; p += 32) held[p] = ids[p];
  for (int i = threadIdx.x; i < WARPS * experts; i += WARPS * 32) next[i] = 0;
  __syncthreads();
  for (int p = begin + lane; p - lane < end; p += 32) {
    const int expert = p < end ? held[p] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] += __popc(same);
    __syncwarp();
  }
  __syncthreads();

  for (int e = threadIdx.x; e < experts; e += WARPS * 32) {
    int sum = 0;
    for (int w = 0; w < WARPS; ++w) {
      const int count = next[w * experts + e];
      next[w * experts + e] = sum;
      sum += count;
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
  __syncthreads();
  for (int e = threadIdx.x; e <= experts; e += WARPS * 32) offsets[e] = first[e];

  for (int p = begin + lane; p - lane < end; p += 32) {
    const int expert = p < end ? held[p] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    if (expert >= 0) {
      const int row = first[expert] + mine[expert] + __popc(same & ((1u << lane) - 1));
      row_map[p] = row;
      source[row] = p / experts_per_token;
    }
    __syncwarp();
    if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] += __popc(same);
    __syncwarp();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gather_rows(const uint4* __restrict__ x, const int* __restrict__ source, uint4* __restrict__ y, int pairs, int cols) {
  const int packets = cols / 8, first = blockIdx.x * ROWS;
  int token[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) token[r] = first + r < pairs ? source[first + r] : -1;

  for (int n = threadIdx.x; n < packets; n += THREADS) {
    uint4 keep[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (token[r] >= 0) keep[r] = x[(size_t)token[r] * packets + n];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (token[r] >= 0) __stcs(y + (size_t)(first + r) * packets + n, keep[r]);
  }
}
