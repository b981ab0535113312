// flash_decode/tma: out[b, h, :] = softmax(scale * q[b, h, :] . K[b, :, h, :]) @ V[b, :, h, :], paged fp16 cache.
//
// Split along the sequence as in cp_async, but one thread of a producer warp walks the page table and lets TMA
// fetch one head's rows of a page, a box each of K and V; WARPS consumer warps do nothing but attention. A stage
// of the ring has a full barrier (its bytes have landed) and an empty one (every consumer warp is done with it).
// Gains over cp_async: consumers spend neither instructions nor registers on page lookup, addresses and copies.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, heads, dim]; table [batch, max_pages]; lengths [batch];
//          part [batch, heads, SPLITS, dim]; part_ml [batch, heads, SPLITS] (max, sum).
// Launch: flash_decode_split, grid = (SPLITS, heads, batch), block = (WARPS + 1) * 32,
//         dynamic shared memory = STAGES * BLOCK_N * HEAD_DIM * 4 bytes; map_k, map_v: fp16 tensor maps of k and v
//         as [pages * page, heads * dim], box HEAD_DIM x min(BLOCK_N, page), no swizzle;
//         then flash_decode_combine, grid = batch * heads, block = HEAD_DIM.
// Needs:  sm_90 or later (TMA); page and BLOCK_N powers of two.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int HEAD_DIM = 128; // dim
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;      // consumer warps per block
constexpr int BLOCK_N = 32;   // tokens per stage
constexpr int STAGES = 3;     // stages of the ring
constexpr int SPLITS = 4;     // slices of the sequence
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 16, "WARPS must be a power of two, at most 16");
static_assert(BLOCK_N % (WARPS * 4) == 0, "BLOCK_N must be a multiple of WARPS * 4: every team gets as many tokens");
static_assert(STAGES * BLOCK_N * HEAD_DIM * 4 <= 227 * 1024, "the ring exceeds the shared memory of any block");
static_assert(SPLITS >= 1 && SPLITS <= 32, "SPLITS must be 1 to 32: the combine is unrolled over them");

constexpr int CONSUMERS = WARPS * 32, THREADS = CONSUMERS + 32;
constexpr int LANES = HEAD_DIM / 8, TEAMS = CONSUMERS / LANES; // LANES neighbours are a team and share a token
constexpr int TOKENS = BLOCK_N / TEAMS;                        // of a stage, per team
constexpr int TILE = BLOCK_N * LANES;                          // packets of K (or V) in a stage
constexpr float NEVER = -1e30f;                                // below any score; exp of it is 0

using u64 = unsigned long long;
struct __align__(16) Half8 {
  __half h[8];
};
struct __align__(64) TensorMap { // a CUtensorMap
  u64 opaque[16];
};

__device__ __forceinline__ unsigned smem_addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void mbar_init(u64* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive(u64* bar, int bytes = 0) { // bytes: still to land in this phase
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(u64* bar, int parity) {
  for (int done = 0; !done;)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(smem_addr(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma_load_2d(void* dst, const TensorMap* map, u64* bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(smem_addr(dst)), "l"(map), "r"(smem_addr(bar)), "r"(x), "r"(y) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_decode_split(const __half* __restrict__ q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const int* __restrict__ table,
                   const int* __restrict__ lengths, float* __restrict__ part, float2* __restrict__ part_ml,
                   int heads, int page, int max_pages, float scale) {
  extern __shared__ __align__(128) Half8 ring[]; // [STAGES][K, V][BLOCK_N][LANES]
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  __shared__ float team_best[TEAMS], team_total[TEAMS], team_acc[TEAMS][HEAD_DIM];
  const int split = blockIdx.x, head = blockIdx.y, b = blockIdx.z, length = lengths[b];
  const int chunk = (length + SPLITS * BLOCK_N - 1) / (SPLITS * BLOCK_N) * BLOCK_N; // boxes stay within a page
  const int begin = min(split * chunk, length), end = min(begin + chunk, length);
  const size_t slot = (size_t)b * heads + head, to = slot * SPLITS + split;

  if (threadIdx.x < STAGES) mbar_init(&full[threadIdx.x], 1);
  if (threadIdx.x < STAGES) mbar_init(&empty[threadIdx.x], WARPS);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();

  if (threadIdx.x == CONSUMERS) {
    const int rows = min(BLOCK_N, page); // of a box
    for (int tile = 0, first = begin; first < end; ++tile, first += BLOCK_N) {
      const int s = tile % STAGES, last = min(first + BLOCK_N, end);
      mbar_wait(&empty[s], (tile / STAGES & 1) ^ 1); // passes at once in the first round
      mbar_arrive(&full[s], (last - first + rows - 1) / rows * rows * HEAD_DIM * 4);
      for (int token = first; token < last; token += rows) {
        const int y = table[b * max_pages + token / page] * page + token % page;
        Half8* box = ring + s * 2 * TILE + (token - first) * LANES;
        tma_load_2d(box, &map_k, &full[s], head * HEAD_DIM, y);
        tma_load_2d(box + TILE, &map_v, &full[s], head * HEAD_DIM, y);
      }
    }
  } else if (threadIdx.x < CONSUMERS) {
    const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const Half8 mine = reinterpret_cast<const Half8*>(q + slot * HEAD_DIM)[lane];
    float query[8], acc[8] = {}, best = NEVER, total = 0.0f;
    for (int i = 0; i < 8; ++i) query[i] = __half2float(mine.h[i]) * scale;

    for (int tile = 0, first = begin; first < end; ++tile, first += BLOCK_N) {
      const int s = tile % STAGES;
      const Half8* from = ring + s * 2 * TILE + threadIdx.x;
      mbar_wait(&full[s], tile / STAGES & 1);
      for (int t = 0; t < TOKENS; ++t) {
        const Half8 key = from[t * CONSUMERS];
        Half8 value = {};
        float score = 0.0f;
        for (int i = 0; i < 8; ++i) score += query[i] * __half2float(key.h[i]);
        for (int offset = LANES / 2; offset > 0; offset >>= 1) score += __shfl_xor_sync(0xffffffffu, score, offset);
        if (first + t * TEAMS + team < end) value = from[TILE + t * CONSUMERS]; // other rows may hold anything
        else score = 2 * NEVER;
        const float before = best;
        best = fmaxf(best, score);
        const float fix = __expf(before - best), weight = __expf(score - best);
        total = total * fix + weight;
        for (int i = 0; i < 8; ++i) acc[i] = acc[i] * fix + weight * __half2float(value.h[i]);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbar_arrive(&empty[s]);
    }
    if (lane == 0) team_best[team] = best, team_total[team] = total;
    for (int i = 0; i < 8; ++i) team_acc[team][lane * 8 + i] = acc[i];
  }
  __syncthreads();

  float top = NEVER;
  for (int i = 0; i < TEAMS; ++i) top = fmaxf(top, team_best[i]);
  for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
    float sum = 0.0f, o = 0.0f;
    for (int i = 0; i < TEAMS; ++i) {
      const float fix = __expf(team_best[i] - top);
      sum += team_total[i] * fix;
      o += team_acc[i][d] * fix;
    }
    part[to * HEAD_DIM + d] = o;
    if (d == 0) part_ml[to] = make_float2(top, sum);
  }
}

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
flash_decode_combine(const float* __restrict__ part, const float2* __restrict__ part_ml, __half* __restrict__ out) {
  const float2* ml = part_ml + (size_t)blockIdx.x * SPLITS;
  float top = NEVER, total = 0.0f, o = 0.0f;
  for (int s = 0; s < SPLITS; ++s) top = fmaxf(top, ml[s].x);
  for (int s = 0; s < SPLITS; ++s) {
    const float fix = __expf(ml[s].x - top);
    total += ml[s].y * fix;
    o += part[((size_t)blockIdx.x * SPLITS + s) * HEAD_DIM + threadIdx.x] * fix;
  }
  out[(size_t)blockIdx.x * HEAD_DIM + threadIdx.x] = __float2half(o / total);
}
