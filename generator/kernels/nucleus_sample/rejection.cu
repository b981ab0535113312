// nucleus_sample/rejection: one token per row, drawn from the fewest likeliest tokens whose mass reaches p.
//
// One block owns one row of fp32 logits. As in FlashInfer's rejection sampling a round draws tokens, by inverse
// transform among those in question, and a pass sums the mass above each: a token with p of it above is rejected, with
// all below. But the row's uniform fixes the answer here, so a token that is not rejected only bounds the pivot, the
// smallest logit of the set, from above, until the pivot itself is drawn. Each thread keeps a reservoir sample of what
// it sees between two of the tokens, so the next draw needs no pass. All logits equal to the pivot are kept, and their
// cumulative sum is inverted in index order.
// Gains over sort_cumsum: nothing is written, wide loads, and weights only of tokens still in question.
//
// Launch: grid = B, block = THREADS, no dynamic shared memory.
// Needs:  any arch, 0 < p < 1, vocab % VEC == 0, 0 <= uniform < 1.

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 512; // threads per block
constexpr int TOKENS = 4;    // tokens drawn and tried per round
constexpr int VEC = 4;       // consecutive logits a thread loads at once
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 threads at most");
static_assert(TOKENS >= 2 && TOKENS <= 8, "TOKENS must be 2 to 8: a thread keeps sums and samples in registers");
static_assert(VEC == 1 || VEC % 4 == 0, "VEC must be 1 or a multiple of 4: aligned accesses");

constexpr int WARPS = THREADS / 32;

struct __align__(VEC % 4 ? 4 : 16) Packet {
  float f[VEC];
};

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

// Calls f on every logit of this thread.
template <class F> __device__ __forceinline__ void visit(const float* row, int vocab, F f) {
  for (int i = threadIdx.x; i < vocab / VEC; i += THREADS) {
    const Packet packet = reinterpret_cast<const Packet*>(row)[i];
    for (int v = 0; v < VEC; ++v) f(packet.f[v]);
  }
}

// One token of a stream, each with a chance in proportion to its weight.
struct Reservoir {
  float mass = 0.0f;
  unsigned key = 0u;
  __device__ __forceinline__ void add(float weight, unsigned candidate, unsigned& random) {
    random = random * 1664525u + 1013904223u;
    mass += weight;
    if ((random >> 8) * 0x1p-24f * mass < weight) key = candidate;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
nucleus_sample(const float* __restrict__ logits, const float* __restrict__ uniform, int* __restrict__ token, int vocab,
               float p, float inv_temperature) {
  __shared__ unsigned edge[TOKENS + 2], drawn[TOKENS];
  __shared__ float tops[WARPS];
  __shared__ int chosen;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  const float u = uniform[blockIdx.x];
  const int tid = threadIdx.x;
  unsigned random = tid * 747796405u;
  float best = row[0], total, held = 0.0f;
  Reservoir mine;
  visit(row, vocab, [&](float f) {
    if (f > best) mine.mass *= __expf((best - f) * inv_temperature), best = f;
    mine.add(__expf((f - best) * inv_temperature), order_key(f), random);
  });
  float top = best;
  for (int offset = 16; offset > 0; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
  if (tid % 32 == 0) tops[tid / 32] = top;
  if (tid == 0) chosen = 0, edge[0] = 0u, edge[TOKENS + 1] = 0xffffffffu;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) top = fmaxf(top, tops[w]);
  const auto weight = [&](float f) { return __expf((f - top) * inv_temperature); };
  mine.mass *= weight(best);
  block_scan(mine.mass, total);
  const float need = p * total;
  unsigned pivot = 0u, low, high;
  for (bool found = false; !found;) {
    if (tid < TOKENS) drawn[tid] = 0u;
    const float before = block_scan(mine.mass, total) - mine.mass;
    if (total == 0.0f) break;
    for (int t = 0; t < TOKENS; ++t) {
      const float target = (t + u) / TOKENS * total;
      if (before <= target && target < before + mine.mass) atomicMax(&drawn[t], mine.key);
    }
    __syncthreads();
    if (tid < TOKENS) {
      int rank = 1;
      for (int t = 0; t < TOKENS; ++t) rank += drawn[t] < drawn[tid] || (drawn[t] == drawn[tid] && t < tid);
      edge[rank] = drawn[tid];
    }
    __syncthreads();
    Reservoir between[TOKENS + 1];
    float equal[TOKENS + 1] = {};
    visit(row, vocab, [&](float f) {
      const unsigned key = order_key(f);
      if (key <= edge[0] || key >= edge[TOKENS + 1]) return;
      for (int t = 0; t <= TOKENS; ++t) {
        if (key > edge[t] && key < edge[t + 1]) between[t].add(weight(f), key, random);
        if (key == edge[t] && key < edge[t + 1]) equal[t] += weight(f);
      }
    });
#pragma unroll
    for (int t = TOKENS; t >= 0; --t) {
      low = edge[t], high = edge[t + 1], pivot = low + 1u;
      mine = between[t];
      block_scan(mine.mass, total);
      if (held + total >= need || t == 0) break; // low is rejected
      held += total;
      block_scan(equal[t], total);
      held += total, pivot = low;
      found = held >= need;
      if (found) break;
    }
    if (tid == 0) edge[0] = low, edge[TOKENS + 1] = high;
  }
  const float target = u * held;
  float base = 0.0f;
  for (int tile = 0; tile < vocab && base <= target; tile += THREADS) {
    const int i = tile + tid;
    const float mass = i < vocab && order_key(row[i]) >= pivot ? weight(row[i]) : 0.0f;
    const float upto = base + block_scan(mass, total);
    if (mass > 0.0f && upto - mass <= target) atomicMax(&chosen, i);
    base += total;
  }
  __syncthreads();
  if (tid == 0) token[blockIdx.x] = chosen;
}
