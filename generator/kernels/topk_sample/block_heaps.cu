// topk_sample/block_heaps: one token per row, drawn from the softmax of its k largest logits (fp32).
//
// SPLITS blocks share a row, and each of their warps streams a run of it. A warp keeps the 64 largest
// logits it has met sorted across its lanes, drops what does not exceed the k-th of them, and queues the
// rest; every 64 queued are sorted and folded in. The row's last block to finish, known by its ticket,
// folds the lists of all runs, which gives the cut, weighs each run by its list (by the run itself where
// the list may lack logits equal to the cut), and draws from one run.
// Gains over radix_select: every multiprocessor works on the row, and logits are read from DRAM once.
//
// Launch: grid = (SPLITS, B), block = THREADS, no dynamic shared memory; tickets are 0 before and after.
// Needs:  any arch, 1 <= k <= min(vocab, 64), 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int SPLITS = 8;    // blocks per row
constexpr int UNROLL = 8;    // logits a thread loads ahead
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(UNROLL == 4 || UNROLL == 8 || UNROLL == 16, "UNROLL must be 4, 8 or 16: whole batches between folds");
static_assert(SPLITS * THREADS <= 16384, "a row has at most 512 warps: one block folds their lists");

constexpr int WARPS = THREADS / 32;
constexpr int RUNS = SPLITS * WARPS;
constexpr int KEEP = 64;                   // logits of a list, two a lane: rank 32 * r + lane
constexpr int BATCH = 4;                   // logits a lane looks at between two looks at the queue
constexpr float LOWEST = -3.402823466e38f; // stands in where there is no logit

// Inclusive prefix sum over a warp.
__device__ __forceinline__ float warp_scan(float v) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const float up = __shfl_up_sync(0xffffffffu, v, offset);
    if (threadIdx.x % 32 >= offset) v += up;
  }
  return v;
}

// The steps of a bitonic network over a list that turn sorted runs of size / 2 into one.
__device__ __forceinline__ void sort(float (&list)[2], int size, bool falls) {
#pragma unroll
  for (; size <= KEEP; size *= 2)
#pragma unroll
    for (int stride = size / 2; stride > 0; stride /= 2) {
      const float old[2] = {list[0], list[1]};
      for (int r = 0; r < 2; ++r) {
        const int rank = 32 * r + threadIdx.x % 32;
        const float other = stride < 32 ? __shfl_xor_sync(0xffffffffu, old[r], stride) : old[1 - r];
        const bool larger = ((rank & stride) == 0) == (((rank & size) == 0) == falls);
        list[r] = larger ? fmaxf(old[r], other) : fminf(old[r], other);
      }
    }
}

// Keeps in `best` the largest of its logits and those of a list in memory; both fall.
__device__ __forceinline__ void fold(float (&best)[2], const float* list) {
  const float* turned = list + KEEP - 1 - threadIdx.x % 32;
  best[0] = fmaxf(best[0], turned[0]), best[1] = fmaxf(best[1], turned[-32]);
  sort(best, KEEP, true);
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_sample(const float* __restrict__ logits, const float* __restrict__ uniform, float* __restrict__ lists,
            unsigned* __restrict__ tickets, int* __restrict__ token, int vocab, int k, float inv_temperature) {
  __shared__ float queue[WARPS][KEEP + 32 * BATCH], mass[RUNS], sums[WARPS];
  __shared__ int last, chosen;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, run = blockIdx.x * WARPS + warp;
  const int length = (vocab + RUNS - 1) / RUNS, end = min((run + 1) * length, vocab);
  const float* row = logits + (size_t)blockIdx.y * vocab;
  float* list = lists + (size_t)blockIdx.y * RUNS * KEEP;

  float best[2] = {LOWEST, LOWEST}, bound = LOWEST, next[UNROLL];
  const auto kth = [&] { return __shfl_sync(0xffffffffu, k > 32 ? best[1] : best[0], (k - 1) % 32); };
  int queued = 0;
  const auto take = [&] {
    const int from = max(queued - KEEP, 0), at = from + lane;
    __syncwarp();
    float fresh[2] = {at < queued ? queue[warp][at] : LOWEST, at + 32 < queued ? queue[warp][at + 32] : LOWEST};
    __syncwarp();
    sort(fresh, 2, false);
    best[0] = fmaxf(best[0], fresh[0]), best[1] = fmaxf(best[1], fresh[1]);
    sort(best, KEEP, true);
    bound = kth(), queued = from;
  };
  const auto load = [&](int i) { return i < end ? row[i] : LOWEST; };
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) next[u] = load(run * length + 32 * u + lane);
  for (int first = run * length; first < end; first += 32 * UNROLL) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const float f = next[u];
      next[u] = load(first + 32 * (UNROLL + u) + lane);
      const unsigned above = __ballot_sync(0xffffffffu, f > bound);
      if (f > bound) queue[warp][queued + __popc(above & ((1u << lane) - 1u))] = f;
      queued += __popc(above);
      while (u % BATCH == BATCH - 1 && queued >= KEEP) take();
    }
  }
  take();
  list[run * KEEP + lane] = best[0], list[run * KEEP + 32 + lane] = best[1];
  __threadfence();
  __syncthreads();
  if (tid == 0) last = atomicInc(&tickets[blockIdx.y], SPLITS - 1) == SPLITS - 1, chosen = 0;
  __syncthreads();
  if (!last) return;

  best[0] = best[1] = LOWEST;
#pragma unroll 4
  for (int n = warp; n < RUNS; n += WARPS) fold(best, list + n * KEEP);
  queue[warp][lane] = best[0], queue[warp][32 + lane] = best[1];
  __syncthreads();
  for (int w = 1; w < WARPS; ++w) fold(best, queue[(warp + w) % WARPS]);
  const float cut = kth(), top = __shfl_sync(0xffffffffu, best[0], 0);
  const auto weight = [=](float f) { return f >= cut ? __expf((f - top) * inv_temperature) : 0.0f; };
  for (int n = warp; n < RUNS; n += WARPS) {
    const float* its = list + n * KEEP;
    const bool whole = its[k - 1] < cut;
    float sum = whole ? weight(its[lane]) + weight(its[32 + lane]) : 0.0f;
    for (int i = n * length + lane; !whole && i < min((n + 1) * length, vocab); i += 32) sum += weight(row[i]);
    sum = warp_scan(sum);
    if (lane == 31) mass[n] = sum;
  }
  __syncthreads();
  float total = 0.0f, base = 0.0f, upto = 0.0f;
  for (int n = 0; n < RUNS; ++n) total += mass[n];
  const float target = uniform[blockIdx.y] * total;
  int owner = 0;
#pragma unroll 4
  for (int n = 0; n < RUNS; ++n) {
    if (mass[n] > 0.0f && upto <= target) owner = n, base = upto;
    upto += mass[n];
  }
  const int share = (length + THREADS - 1) / THREADS, begin = owner * length + tid * share;
  const int stop = min(min(begin + share, (owner + 1) * length), vocab);
  float sum = 0.0f;
#pragma unroll 8
  for (int i = begin; i < stop; ++i) sum += weight(row[i]);
  const float in_warp = warp_scan(sum);
  if (lane == 31) sums[warp] = in_warp;
  __syncthreads();
  for (int w = 0; w < warp; ++w) base += sums[w];
  base += in_warp - sum;
  for (int i = begin; i < stop; ++i) {
    const float mine = weight(row[i]);
    if (mine > 0.0f && base <= target) atomicMax(&chosen, i);
    base += mine;
  }
  __syncthreads();
  if (tid == 0) token[blockIdx.y] = chosen;
}
