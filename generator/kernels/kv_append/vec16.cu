// kv_append/vec16: k_cache[slot[m]] = k[m], v_cache[slot[m]] = v[m] for every token m with slot[m] >= 0, fp16.
//
// All heads of a token lie side by side both in k and in its cache row, so a token is one contiguous run
// of KV * D halves. A thread moves 16-byte packets of it: UNROLL of k and UNROLL of v, THREADS apart,
// all loaded before the first is stored.
// Gains over scalar: whole sectors, an eighth of the accesses, no page arithmetic (a slot is a row).
//
// Launch: grid = ceil(M * KV * D / 8 / (THREADS * UNROLL)), block = THREADS, no dynamic shared memory.
// Needs:  any arch, KV * D % 8 == 0. Caches are [pages, page, KV, D]; a slot counts tokens over all pages.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block
constexpr int UNROLL = 1;    // packets of k, and of v, a thread keeps in flight
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4, "UNROLL must be 1, 2 or 4");

extern "C" __global__ void __launch_bounds__(THREADS)
kv_append(const uint4* __restrict__ k, const uint4* __restrict__ v, const long long* __restrict__ slots,
          uint4* __restrict__ k_cache, uint4* __restrict__ v_cache, int tokens, int kv_heads, int dim) {
  const int row_packets = kv_heads * dim / 8;
  const int packets = tokens * row_packets;
  const int first = blockIdx.x * THREADS * UNROLL + threadIdx.x;

  uint4 keep_k[UNROLL], keep_v[UNROLL];
  long long to[UNROLL];
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    const int p = first + i * THREADS;
    to[i] = -1;
    if (p < packets) {
      const long long slot = slots[p / row_packets];
      if (slot >= 0) { // padding of the batch has slot -1
        to[i] = slot * row_packets + p % row_packets;
        keep_k[i] = k[p];
        keep_v[i] = v[p];
      }
    }
  }

#pragma unroll
  for (int i = 0; i < UNROLL; ++i) {
    if (to[i] >= 0) {
      k_cache[to[i]] = keep_k[i];
      v_cache[to[i]] = keep_v[i];
    }
  }
}
