// swa_decode/ring_pages: out[b, h, :] = softmax(scale * q[b, h, :] . K) @ V over the last `window` tokens, paged fp16 cache, GQA.
//
// As block_skip, one block serves HEADS query heads that share a KV head and reads the window only; but the pages
// of the window pass through a ring of STAGES page buffers in shared memory, each fetched once: cp.async keeps
// STAGES - 1 pages in flight while one is used. Rows of the first and last page outside the window are filled
// with zeros, not read. A team of dim / 8 lanes copies just the tokens it will use, so the ring needs no barrier,
// and the number of the next page is read a page ahead. Where HEADS does not divide the group, the last block
// repeats a head.
// Gains over block_skip: loads outlive an iteration and cost no registers; one page number for a whole page.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, kv_heads, dim]; table [batch, max_pages]; lengths [batch].
// Launch: grid = (kv_heads * ceil(group / HEADS), batch) with group = heads / kv_heads, block = WARPS * 32,
//         dynamic shared memory = STAGES * page * dim * 4 bytes.
// Needs:  sm_80 or later (cp.async), dim 64, 128 or 256, page % (256 / dim) == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;  // warps per block
constexpr int STAGES = 3; // page buffers in the ring
constexpr int HEADS = 2;  // query heads per block
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 32, "WARPS must be a power of two, at most 32");
static_assert(STAGES >= 2, "STAGES must be 2 or more: one page is used while others load");
static_assert(HEADS >= 1 && HEADS <= 8, "HEADS must be 1 to 8: all are held in registers");

constexpr int THREADS = WARPS * 32;
constexpr float NEVER = -1e30f; // below any score; exp of it is 0

struct __align__(16) Half8 {
  __half2 h[4];
};

__device__ __forceinline__ void unpack(const Half8& p, float (&f)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 t = __half22float2(p.h[i]);
    f[2 * i] = t.x;
    f[2 * i + 1] = t.y;
  }
}

__device__ __forceinline__ void cp_async(Half8* to, const Half8* from, bool wanted) { // zeros if not wanted
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
swa_decode(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
           const int* __restrict__ table, const int* __restrict__ lengths, __half* __restrict__ out,
           int heads, int kv_heads, int dim, int page, int max_pages, int window, float scale) {
  extern __shared__ Half8 ring[]; // [STAGES][K, V][page][lanes]
  const int group = heads / kv_heads, parts = (group + HEADS - 1) / HEADS;
  const int kv_head = blockIdx.x / parts, member = blockIdx.x % parts * HEADS, b = blockIdx.y;
  const int lanes = dim / 8, teams = THREADS / lanes, team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int end = lengths[b], begin = max(end - window, 0), first = begin / page, last = (end + page - 1) / page;
  const int* pages = table + b * max_pages;
  const size_t head0 = (size_t)b * heads + kv_head * group;

  int next = pages[first]; // where the page to copy next lies in the cache
  const auto copy = [&](int i) { // one group, empty past the window
    if (i < last) {
      Half8* to = ring + i % STAGES * 2 * page * lanes + lane;
      for (int t = team; t < page; t += teams) {
        const bool seen = i * page + t >= begin && i * page + t < end;
        const size_t from = (((size_t)next * page + t) * kv_heads + kv_head) * lanes + lane;
        cp_async(to + t * lanes, reinterpret_cast<const Half8*>(k) + from, seen);
        cp_async(to + (page + t) * lanes, reinterpret_cast<const Half8*>(v) + from, seen);
      }
      next = pages[min(i + 1, last - 1)];
    }
    cp_async_commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) copy(first + s);

  float query[HEADS][8], acc[HEADS][8] = {}, best[HEADS], total[HEADS] = {};
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    unpack(reinterpret_cast<const Half8*>(q + (head0 + min(member + h, group - 1)) * dim)[lane], query[h]);
    best[h] = NEVER;
#pragma unroll
    for (int i = 0; i < 8; ++i) query[h][i] *= scale;
  }

  for (int i = first; i < last; ++i) {
    cp_async_wait<STAGES - 2>();
    copy(i + STAGES - 1);
    const Half8* from = ring + i % STAGES * 2 * page * lanes + lane;
    for (int t = team; t < page; t += teams) {
      const bool seen = i * page + t >= begin && i * page + t < end;
      float score[HEADS] = {}, f[8];
      unpack(from[t * lanes], f);
#pragma unroll
      for (int h = 0; h < HEADS; ++h)
#pragma unroll
        for (int j = 0; j < 8; ++j) score[h] += query[h][j] * f[j];
      for (int offset = lanes / 2; offset > 0; offset >>= 1)
#pragma unroll
        for (int h = 0; h < HEADS; ++h) score[h] += __shfl_xor_sync(0xffffffffu, score[h], offset);
      unpack(from[(page + t) * lanes], f);
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        if (!seen) score[h] = 2 * NEVER;
        const float before = best[h];
        best[h] = fmaxf(best[h], score[h]);
        const float fix = __expf(before - best[h]), weight = __expf(score[h] - best[h]);
        total[h] = total[h] * fix + weight;
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[h][j] = acc[h][j] * fix + weight * f[j];
      }
    }
  }

  __shared__ float team_best[THREADS / 8], team_total[THREADS / 8], team_acc[THREADS * 8];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    if (lane == 0) team_best[team] = best[h];
    __syncthreads();
    float top = NEVER, sum = 0.0f;
    for (int i = 0; i < teams; ++i) top = fmaxf(top, team_best[i]);
    const float fix = __expf(best[h] - top);
    if (lane == 0) team_total[team] = total[h] * fix;
#pragma unroll
    for (int i = 0; i < 8; ++i) team_acc[threadIdx.x * 8 + i] = acc[h][i] * fix;
    __syncthreads();
    for (int i = 0; i < teams; ++i) sum += team_total[i];
    for (int d = threadIdx.x; d < dim && member + h < group; d += THREADS) {
      float o = 0.0f;
      for (int i = 0; i < teams; ++i) o += team_acc[i * dim + d];
      out[(head0 + member + h) * dim + d] = __float2half(o / sum);
    }
  }
}
