// swa_decode/split_window: out[b, h, :] = softmax(scale * q[b, h, :] . K) @ V over the last `window` tokens, paged fp16 cache, GQA.
//
// As block_skip, but the window is cut into SPLITS slices, one block each; a second kernel merges the slices.
// dim / 8 neighbouring lanes share a token, 16 bytes each, and use it for all HEADS heads; every such team runs
// its own softmax over the tokens it meets, TOKENS of them in flight. Where HEADS does not divide the group,
// the last block repeats a head.
// Gains over block_skip: SPLITS times the blocks, so few sequences with a long window still fill the GPU.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, kv_heads, dim]; table [batch, max_pages]; lengths [batch].
//          part [batch, heads, SPLITS, dim]; part_ml [batch, heads, SPLITS] (max, sum).
// Launch: swa_decode_split, grid = (kv_heads * ceil(group / HEADS), batch, SPLITS) with group = heads / kv_heads,
//         block = WARPS * 32; then swa_decode_combine, grid = batch * heads, block = dim.
// Needs:  any arch, dim 64, 128 or 256.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;  // warps per block
constexpr int TOKENS = 1; // tokens a team keeps in flight
constexpr int HEADS = 2;  // query heads per block
constexpr int SPLITS = 4; // slices of the window
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 32, "WARPS must be a power of two, at most 32");
static_assert(TOKENS >= 1 && TOKENS <= 8, "TOKENS must be 1 to 8: all are held in registers");
static_assert(HEADS >= 1 && HEADS <= 8, "HEADS must be 1 to 8: all are held in registers");
static_assert(SPLITS >= 1 && SPLITS <= 32, "SPLITS must be 1 to 32: the combine is unrolled over them");

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
swa_decode_split(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
                 const int* __restrict__ table, const int* __restrict__ lengths, float* __restrict__ part,
                 float2* __restrict__ part_ml, int heads, int kv_heads, int dim, int page, int max_pages, int window,
                 float scale) {
  const int group = heads / kv_heads, parts = (group + HEADS - 1) / HEADS;
  const int kv_head = blockIdx.x / parts, member = blockIdx.x % parts * HEADS, b = blockIdx.y, split = blockIdx.z;
  const int lanes = dim / 8, teams = THREADS / lanes, team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int length = lengths[b], chunk = (min(window, length) + SPLITS - 1) / SPLITS;
  const int begin = max(length - window, 0) + split * chunk, end = min(begin + chunk, length);
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
    const size_t to = (head0 + member + h) * SPLITS + split;
    for (int d = threadIdx.x; d < dim && member + h < group; d += THREADS) {
      float o = 0.0f;
      for (int i = 0; i < teams; ++i) o += team_acc[i * dim + d];
      part[to * dim + d] = o;
    }
    if (threadIdx.x == 0 && member + h < group) part_ml[to] = make_float2(top, sum);
  }
}

extern "C" __global__ void swa_decode_combine(const float* __restrict__ part, const float2* __restrict__ part_ml,
                                              __half* __restrict__ out, int dim) {
  const size_t slot = blockIdx.x;
  const float2* ml = part_ml + slot * SPLITS;
  float top = NEVER, total = 0.0f, o = 0.0f;
  for (int s = 0; s < SPLITS; ++s) top = fmaxf(top, ml[s].x);
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) {
    const float fix = __expf(ml[s].x - top);
    total += ml[s].y * fix;
    o += part[(slot * SPLITS + s) * dim + threadIdx.x] * fix;
  }
  out[slot * dim + threadIdx.x] = __float2half(o / total);
}
