// topk_sample/selection_passes: one token per row, drawn from the softmax of its k largest logits (fp32).
//
// One block owns one row and walks it again and again: in each pass every thread keeps the ITEMS
// largest distinct values below those already taken, and the block takes the largest of all, ITEMS
// times, until k logits are taken. All logits equal to the k-th are kept. Two more passes sum the
// weights of what is kept and invert their cumulative sum in index order. Simple, no atomics on the
// way to the cut; but the row is read about k / ITEMS + 2 times.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, 1 <= k <= vocab, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 1024; // threads per block
constexpr int ITEMS = 2;      // values taken per pass over the row
constexpr int UNROLL = 4;     // loads a thread issues before it uses the first
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(ITEMS >= 1 && ITEMS <= 8, "ITEMS must be 1 to 8: a thread's list lives in registers");

constexpr int WARPS = THREADS / 32;

// Unsigned keys that sort like the floats they come from; 0 is below every logit.
__device__ __forceinline__ unsigned order_key(float f) {
  const unsigned bits = __float_as_uint(f + 0.0f); // -0 counts as 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Combines one value of every thread; every thread gets the result.
template <class T, class F> __device__ __forceinline__ T block_reduce(T v, F combine) {
  __shared__ T partial[WARPS];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v = combine(v, __shfl_xor_sync(0xffffffffu, v, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  T all = partial[0];
  for (int i = 1; i < WARPS; ++i) all = combine(all, partial[i]);
  __syncthreads();
  return all;
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

// Distinct values in falling order, with how often each occurred.
struct List {
  unsigned key[ITEMS];
  int count[ITEMS];

  __device__ __forceinline__ void insert(unsigned k) {
    int n = 1;
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      if (k == key[j]) {
        count[j] += n;
        return;
      }
      if (k > key[j]) {
        const unsigned old_key = key[j];
        const int old_count = count[j];
        key[j] = k, count[j] = n;
        k = old_key, n = old_count;
      }
    }
  }

  __device__ __forceinline__ void pop() {
#pragma unroll
    for (int j = 1; j < ITEMS; ++j) key[j - 1] = key[j], count[j - 1] = count[j];
    key[ITEMS - 1] = 0u, count[ITEMS - 1] = 0;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
topk_sample(const float* __restrict__ logits, const float* __restrict__ uniform, int* __restrict__ token, int vocab,
            int k, float inv_temperature) {
  __shared__ int chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;

  unsigned top = 0u, cut = 0xffffffffu;
  for (int taken = 0; taken < k;) {
    List list = {};
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < vocab; i += THREADS) {
      const unsigned key = order_key(row[i]);
      if (key < cut && key >= list.key[ITEMS - 1]) list.insert(key);
    }
    for (int j = 0; j < ITEMS && taken < k; ++j) {
      cut = block_reduce(list.key[0], [](unsigned a, unsigned b) { return max(a, b); });
      top = max(top, cut);
      const bool mine = list.key[0] == cut;
      taken += block_reduce(mine ? list.count[0] : 0, [](int a, int b) { return a + b; });
      if (mine) list.pop();
    }
  }

  const float best = logit_of(top);
  float mass = 0.0f;
#pragma unroll UNROLL
  for (int i = threadIdx.x; i < vocab; i += THREADS)
    if (order_key(row[i]) >= cut) mass += __expf((row[i] - best) * inv_temperature);
  const float target = uniform[blockIdx.x] * block_reduce(mass, [](float a, float b) { return a + b; });

  if (threadIdx.x == 0) chosen = 0;
  float base = 0.0f;
  for (int tile = 0; tile < vocab && base <= target; tile += THREADS) {
    const int i = tile + threadIdx.x;
    const bool kept = i < vocab && order_key(row[i]) >= cut;
    const float weight = kept ? __expf((row[i] - best) * inv_temperature) : 0.0f;
    float sum;
    const float upto = base + block_scan(weight, sum);
    if (kept && upto - weight <= target) atomicMax(&chosen, i);
    base += sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) token[blockIdx.x] = chosen;
}
