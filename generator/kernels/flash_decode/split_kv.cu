// flash_decode/split_kv: out[b, h, :] = softmax(scale * q[b, h, :] . K[b, :, h, :]) @ V[b, :, h, :], paged fp16 cache.
//
// The sequence is cut into SPLITS slices, one block each. HEAD_DIM / VEC neighbouring lanes share a token,
// VEC halves each; every such team runs its own softmax over the tokens it meets, TOKENS of them in flight,
// and the teams are merged through shared memory. A second kernel merges the slices.
// Gains over single_pass: SPLITS times the blocks, coalesced wide loads, K and V of TOKENS tokens in flight.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, heads, dim]; table [batch, max_pages]; lengths [batch];
//          part [batch, heads, SPLITS, dim]; part_ml [batch, heads, SPLITS] (max, sum).
// Launch: flash_decode_split, grid = (SPLITS, heads, batch), block = WARPS * 32;
//         then flash_decode_combine, grid = batch * heads, block = HEAD_DIM; no dynamic shared memory.
// Needs:  any arch.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int HEAD_DIM = 128; // dim
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;      // warps per block
constexpr int VEC = 8;        // halves of a token per lane
constexpr int TOKENS = 1;     // tokens a team keeps in flight
constexpr int SPLITS = 4;     // slices of the sequence
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 32, "WARPS must be a power of two, at most 32");
static_assert(VEC == 4 || VEC == 8 || VEC == 16, "VEC must be 4, 8 or 16: a token fits a warp in whole packets");
static_assert(TOKENS >= 1 && TOKENS <= 8, "TOKENS must be 1 to 8: all are held in registers");
static_assert(SPLITS >= 1 && SPLITS <= 32, "SPLITS must be 1 to 32: the combine is unrolled over them");

constexpr int THREADS = WARPS * 32;
constexpr int LANES = HEAD_DIM / VEC;  // a team
constexpr int TEAMS = THREADS / LANES;
constexpr float NEVER = -1e30f;        // below any score; exp of it is 0

struct __align__(VEC < 8 ? VEC * 2 : 16) Packet {
  __half2 h[VEC / 2];
};

__device__ __forceinline__ void unpack(const Packet& p, float (&f)[VEC]) {
#pragma unroll
  for (int i = 0; i < VEC / 2; ++i) {
    const float2 t = __half22float2(p.h[i]);
    f[2 * i] = t.x;
    f[2 * i + 1] = t.y;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
flash_decode_split(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
                   const int* __restrict__ table, const int* __restrict__ lengths, float* __restrict__ part,
                   float2* __restrict__ part_ml, int heads, int page, int max_pages, float scale) {
  const int split = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int length = lengths[b], chunk = (length + SPLITS - 1) / SPLITS;
  const int begin = split * chunk, end = min(begin + chunk, length);
  const size_t slot = (size_t)b * heads + head;

  float query[VEC], acc[VEC] = {}, best = NEVER, total = 0.0f;
  unpack(reinterpret_cast<const Packet*>(q + slot * HEAD_DIM)[lane], query);
#pragma unroll
  for (int i = 0; i < VEC; ++i) query[i] *= scale;

  for (int base = begin; base < end; base += TEAMS * TOKENS) {
    Packet kp[TOKENS], vp[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const int token = min(base + t * TEAMS + team, end - 1);
      const int row = table[b * max_pages + token / page] * page + token % page;
      const size_t at = ((size_t)row * heads + head) * LANES + lane;
      kp[t] = reinterpret_cast<const Packet*>(k)[at];
      vp[t] = reinterpret_cast<const Packet*>(v)[at];
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      float f[VEC], score = 0.0f;
      unpack(kp[t], f);
#pragma unroll
      for (int i = 0; i < VEC; ++i) score += query[i] * f[i];
#pragma unroll
      for (int offset = LANES / 2; offset > 0; offset >>= 1) score += __shfl_xor_sync(0xffffffffu, score, offset);
      if (base + t * TEAMS + team >= end) score = 2 * NEVER;
      const float before = best;
      best = fmaxf(best, score);
      const float fix = __expf(before - best), weight = __expf(score - best);
      total = total * fix + weight;
      unpack(vp[t], f);
#pragma unroll
      for (int i = 0; i < VEC; ++i) acc[i] = acc[i] * fix + weight * f[i];
    }
  }

  __shared__ float team_best[TEAMS], team_total[TEAMS], team_acc[TEAMS][HEAD_DIM];
  if (lane == 0) team_best[team] = best;
  __syncthreads();
  float top = NEVER, sum = 0.0f;
  for (int i = 0; i < TEAMS; ++i) top = fmaxf(top, team_best[i]);
  const float fix = __expf(best - top);
  if (lane == 0) team_total[team] = total * fix;
#pragma unroll
  for (int i = 0; i < VEC; ++i) team_acc[team][lane * VEC + i] = acc[i] * fix;
  __syncthreads();

  const size_t to = slot * SPLITS + split;
  for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
    float o = 0.0f;
    for (int i = 0; i < TEAMS; ++i) o += team_acc[i][d];
    part[to * HEAD_DIM + d] = o;
  }
  for (int i = 0; i < TEAMS; ++i) sum += team_total[i];
  if (threadIdx.x == 0) part_ml[to] = make_float2(top, sum);
}

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
flash_decode_combine(const float* __restrict__ part, const float2* __restrict__ part_ml, __half* __restrict__ out) {
  const size_t slot = blockIdx.x;
  const float2* ml = part_ml + slot * SPLITS;
  float top = NEVER, total = 0.0f, o = 0.0f;
  for (int s = 0; s < SPLITS; ++s) top = fmaxf(top, ml[s].x);
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) {
    const float fix = __expf(ml[s].x - top);
    total += ml[s].y * fix;
    o += part[(slot * SPLITS + s) * HEAD_DIM + threadIdx.x] * fix;
  }
  out[slot * HEAD_DIM + threadIdx.x] = __float2half(o / total);
}
