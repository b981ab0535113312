// kv_append/vec32: k_cache[slot[m]] = k[m], v_cache[slot[m]] = v[m] for every token m with slot[m] >= 0, fp16.
//
// A block owns TOKENS tokens, one contiguous run of k and of v. A thread takes 32 bytes of each at a time,
// as two 16-byte packets THREADS apart so that a warp stays contiguous, and requests them before it knows
// the slots: slot and data cost one round trip to DRAM instead of two.
// Gains over vec16: slot latency hidden, twice the bytes in flight, fewer and longer blocks.
//
// Launch: grid = ceil(M / TOKENS), block = THREADS, no dynamic shared memory.
// Needs:  any arch, KV * D % 8 == 0. Caches are [pages, page, KV, D]; a slot counts tokens over all pages.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block
constexpr int TOKENS = 2;    // tokens of one block
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(TOKENS >= 1 && TOKENS <= 16, "TOKENS must be 1 to 16");

extern "C" __global__ void __launch_bounds__(THREADS)
kv_append(const uint4* __restrict__ k, const uint4* __restrict__ v, const long long* __restrict__ slots,
          uint4* __restrict__ k_cache, uint4* __restrict__ v_cache, int tokens, int kv_heads, int dim) {
  const int row_packets = kv_heads * dim / 8;
  const int token = blockIdx.x * TOKENS;
  const int packets = min(TOKENS, tokens - token) * row_packets;
  const size_t from = (size_t)token * row_packets;

  for (int p = threadIdx.x; p < packets; p += 2 * THREADS) {
    const int q = p + THREADS;
    const uint4 k0 = k[from + p], v0 = v[from + p];
    uint4 k1 = {}, v1 = {};
    if (q < packets) k1 = k[from + q], v1 = v[from + q];

    const long long slot0 = slots[token + p / row_packets];
    const long long slot1 = q < packets ? slots[token + q / row_packets] : -1;
    if (slot0 >= 0) { // padding of the batch has slot -1
      k_cache[slot0 * row_packets + p % row_packets] = k0;
      v_cache[slot0 * row_packets + p % row_packets] = v0;
    }
    if (slot1 >= 0) {
      k_cache[slot1 * row_packets + q % row_packets] = k1;
      v_cache[slot1 * row_packets + q % row_packets] = v1;
    }
  }
}
