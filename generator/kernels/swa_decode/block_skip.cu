// swa_decode/block_skip: out[b, h, :] = softmax(scale * q[b, h, :] . K) @ V over the last `window` tokens, paged fp16 cache, GQA.
//
// One block serves HEADS query heads that share a KV head and starts at the first token of the window, so
// nothing before it is read. dim / 8 neighbouring lanes share a token, 16 bytes each, and use it for all HEADS
// heads; every such team runs its own softmax over the tokens it meets, TOKENS of them in flight, and the teams
// are merged through shared memory. Where HEADS does not divide the group, the last block repeats a head.
// Gains over mask_only: reads the window only, K and V once per HEADS heads, both coalesced and in flight together.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, kv_heads, dim]; table [batch, max_pages]; lengths [batch].
// Launch: grid = (kv_heads * ceil(group / HEADS), batch) with group = heads / kv_heads, block = WARPS * 32.
// Needs:  any arch, dim 64, 128 or 256.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;  // warps per block
constexpr int TOKENS = 1; // tokens a team keeps in flight
constexpr int HEADS = 2;  // query heads per block
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 32, "WARPS must be a power of two, at most 32");
static_assert(TOKENS >= 1 && TOKENS <= 8, "TOKENS must be 1 to 8: all are held in registers");
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

extern "C" __global__ void __launch_bounds__(THREADS)
swa_decode(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
           const int* __restrict__ table, const int* __restrict__ lengths, __half* __restrict__ out,
           int heads, int kv_heads, int dim, int page, int max_pages, int window, float scale) {
  const int group = heads / kv_heads, parts = (group + HEADS - 1) / HEADS;
  const int kv_head = blockIdx.x / parts, member = blockIdx.x % parts * HEADS, b = blockIdx.y;
  const int lanes = dim / 8, teams = THREADS / lanes, team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int end = lengths[b], begin = max(end - window, 0);
  const size_t head0 = (size_t)b * heads + kv_head * group;

  float query[HEADS][8], acc[HEADS][8] = {}, best[HEADS], total[HEADS] = {};
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    unpack(reinterpret_cast<const Half8*>(q + (head0 + min(member + h, group - 1)) * dim)[lane], query[h]);
    best[h] = NEVER;
#pragma unroll
    for (int i = 0; i < 8; ++i) query[h][i] *= scale;
  }

  for (int base = begin; base < end; base += teams * TOKENS) {
    Half8 kp[TOKENS], vp[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const int token = min(base + t * teams + team, end - 1);
      const int row = table[b * max_pages + token / page] * page + token % page;
      const size_t at = ((size_t)row * kv_heads + kv_head) * lanes + lane;
      kp[t] = reinterpret_cast<const Half8*>(k)[at];
      vp[t] = reinterpret_cast<const Half8*>(v)[at];
    }
    float score[TOKENS][HEADS] = {}, f[8];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      unpack(kp[t], f);
#pragma unroll
      for (int h = 0; h < HEADS; ++h)
#pragma unroll
        for (int i = 0; i < 8; ++i) score[t][h] += query[h][i] * f[i];
      for (int offset = lanes / 2; offset > 0; offset >>= 1)
#pragma unroll
        for (int h = 0; h < HEADS; ++h) score[t][h] += __shfl_xor_sync(0xffffffffu, score[t][h], offset);
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const float before = best[h];
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        if (base + t * teams + team >= end) score[t][h] = 2 * NEVER;
        best[h] = fmaxf(best[h], score[t][h]);
      }
      const float fix = __expf(before - best[h]);
      total[h] *= fix;
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] *= fix;
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      unpack(vp[t], f);
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        const float weight = __expf(score[t][h] - best[h]);
        total[h] += weight;
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[h][i] += weight * f[i];
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
