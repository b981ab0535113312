// topk_sample/sort: one token per row, drawn from the softmax of its k largest logits (fp32).
//
// One block owns one row and sorts it chunk by chunk. The registers of the block hold THREADS * ITEMS
// keys, the k largest so far and then logits not yet seen; a bitonic network puts them in falling order,
// by shuffles where partners share a warp and through shared memory where they do not. After the last
// chunk the k-th key is the cut. All logits equal to it are kept; two more passes sum the weights of
// what is kept and invert their cumulative sum in index order.
// Gains over selection_passes: the cut takes one read of the row, whatever k.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, 1 <= k <= vocab, k <= THREADS, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 512; // threads per block
constexpr int ITEMS = 8;     // keys a thread holds
// -----------------------------------------------------------------------------

static_assert((THREADS & (THREADS - 1)) == 0 && THREADS >= 64, "THREADS must be a power of two, at least 64");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert((ITEMS & (ITEMS - 1)) == 0, "ITEMS must be a power of two");
static_assert(THREADS * ITEMS <= 8192, "a chunk exceeds 32 KB of shared memory");

constexpr int CHUNK = THREADS * ITEMS;
constexpr int WARPS = THREADS / 32;

// Unsigned keys that sort like the floats they come from; 0 is below every logit.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f + 0.0f); // -0 counts as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Inclusive prefix sum over the block; total receives the block's sum.
__device__ __forceinline__ float block_scan(float v, float& total) {
  __shared__ float sums[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
    if (lane >= offset) v += up;
  }
  if (lane == 31) sums[warp] = v;
  __syncthreads();
  float before = 0.0f;
  total = 0.0f;
  for (int i = 0; i < WARPS; ++i) {
    if (i < warp) before += sums[i];
    total += sums[i];
  }
  __syncthreads();
  return before + v;
}

// Sorts the keys of the block in falling order, thread after thread.
__device__ __forceinline__ void block_sort(unsigned (&key)[ITEMS]) {
  __shared__ unsigned passed[ITEMS][THREADS];
  const int tid = threadIdx.x;
  for (int size = 2; size <= CHUNK; size *= 2) {
    for (int stride = size / 2; stride >= ITEMS; stride /= 2) {
      const int apart = stride / ITEMS;
      const bool larger = ((tid & apart) == 0) == ((tid * ITEMS & size) == 0);
      if (apart >= 32) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) passed[i][tid] = key[i];
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const unsigned other = apart >= 32 ? passed[i][tid ^ apart] : __shfl_xor_sync(0xffffffffu, key[i], apart);
        key[i] = larger ? max(key[i], other) : min(key[i], other);
      }
      if (apart >= 32) __syncthreads();
    }
#pragma unroll
    for (int stride = ITEMS / 2; stride > 0; stride /= 2) {
      if (stride >= size) continue;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (i & stride) continue;
        const unsigned low = min(key[i], key[i | stride]), high = max(key[i], key[i | stride]);
        const bool falls = ((tid * ITEMS + i) & size) == 0;
        key[i] = falls ? high : low;
        key[i | stride] = falls ? low : high;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_sample(const float* __restrict__ logits, const float* __restrict__ uniform, int* __restrict__ token, int vocab,
            int k, float inv_temperature) {
  __shared__ unsigned leader[THREADS];
  __shared__ int chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  const int tid = threadIdx.x;

  unsigned key[ITEMS] = {};
  for (int seen = 0; seen < vocab; seen += CHUNK - k) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int slot = i * THREADS + tid, at = seen + slot - k;
      if (slot >= k) key[i] = at < vocab ? order_key(row[at]) : 0u;
    }
    block_sort(key);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
      if (tid * ITEMS + i < k) leader[tid * ITEMS + i] = key[i];
    __syncthreads();
    if (tid < k) key[0] = leader[tid];
  }
  const unsigned cut = leader[k - 1];
  const float best = logit_of(leader[0]);
  const auto weight = [=](float f) { return order_key(f) >= cut ? __expf((f - best) * inv_temperature) : 0.0f; };

  float mass = 0.0f, total, base = 0.0f;
  for (int i = tid; i < vocab; i += THREADS) mass += weight(row[i]);
  block_scan(mass, total);
  const float target = uniform[blockIdx.x] * total;
  if (tid == 0) chosen = 0;
  for (int tile = 0; tile < vocab && base <= target; tile += THREADS) {
    const int i = tile + tid;
    const float mine = i < vocab ? weight(row[i]) : 0.0f, upto = base + block_scan(mine, total);
    if (mine > 0.0f && upto - mine <= target) atomicMax(&chosen, i);
    base += total;
  }
  __syncthreads();
  if (tid == 0) token[blockIdx.x] = chosen;
}
