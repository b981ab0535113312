// kv_append/table_prefetch: k_cache[slot[m]] = k[m], v_cache[slot[m]] = v[m] for every token m with slot[m] >= 0, fp16.
//
// A warp owns TOKENS tokens. Before it copies the first it reads the slots of all of them with one access, one
// to a lane, and from then on gets each by a shuffle: no token waits for its slot, and since a slot is the same
// for the whole warp, no lane divides to find its token. A lane takes UNROLL packets of k and of v at a time.
// Gains over vec32: a slot is read once, not once a packet; no divisions; a warp goes on to its next token where a
// new block would have to start. It pays with many tokens: a small batch leaves most multiprocessors without a warp.
//
// Launch: grid = ceil(M / (THREADS / 32 * TOKENS)), block = THREADS, no dynamic shared memory.
// Needs:  any arch, KV * D % 8 == 0. Caches are [pages, page, KV, D]; a slot counts tokens over all pages.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 64; // threads per block
constexpr int TOKENS = 4;   // tokens of one warp
constexpr int UNROLL = 2;   // packets of k, and of v, a lane keeps in flight
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(TOKENS >= 1 && TOKENS <= 32, "TOKENS must be 1 to 32: a lane holds one slot");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4, "UNROLL must be 1, 2 or 4");

extern "C" __global__ void __launch_bounds__(THREADS)
kv_append(const uint4* __restrict__ k, const uint4* __restrict__ v, const long long* __restrict__ slots,
          uint4* __restrict__ k_cache, uint4* __restrict__ v_cache, int tokens, int kv_heads, int dim) {
  const int row_packets = kv_heads * dim / 8, lane = threadIdx.x % 32;
  const int first = (blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * TOKENS;
  const int count = min(TOKENS, tokens - first);
  const long long ahead = lane < count ? slots[first + lane] : -1;

  for (int t = 0; t < count; ++t) {
    const size_t from = (size_t)(first + t) * row_packets;
    for (int base = 0; base < row_packets; base += 32 * UNROLL) {
      uint4 keep_k[UNROLL], keep_v[UNROLL];
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        const int p = base + i * 32 + lane;
        if (p < row_packets) keep_k[i] = k[from + p], keep_v[i] = v[from + p];
      }
      const long long slot = __shfl_sync(0xffffffffu, ahead, t); // asked for late: the first packets are on their way
      if (slot < 0) break;                                      // padding of the batch
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        const int p = base + i * 32 + lane;
        if (p < row_packets) {
          k_cache[slot * row_packets + p] = keep_k[i];
          v_cache[slot * row_packets + p] = keep_v[i];
        }
      }
    }
  }
}
