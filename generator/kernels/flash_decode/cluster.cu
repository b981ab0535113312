// flash_decode/cluster: out[b, h, :] = softmax(scale * q[b, h, :] . K[b, :, h, :]) @ V[b, :, h, :], paged fp16 cache.
//
// The sequence is split over the CLUSTER blocks of a thread block cluster, each of which streams its slice through
// a cp.async ring as in cp_async. The blocks leave their sums, total and maximum in shared memory, and after a
// barrier of the cluster each merges its share of the columns, reading the others' through distributed shared memory.
// Gains over cp_async: one kernel, no workspace; the splits meet on the chip, not in global memory.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, heads, dim]; table [batch, max_pages]; lengths [batch].
// Launch: grid = (CLUSTER, heads, batch), block = WARPS * 32, dynamic shared memory STAGES * BLOCK_N * HEAD_DIM * 4 bytes.
// Needs:  sm_90 or later (clusters).
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int HEAD_DIM = 128; // dim
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;      // warps per block
constexpr int BLOCK_N = 32;   // tokens per tile
constexpr int STAGES = 2;     // tiles in the ring
constexpr int CLUSTER = 4;    // blocks of a cluster, slices of the sequence
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 32, "WARPS must be a power of two, at most 32");
static_assert(BLOCK_N % (WARPS * 4) == 0, "BLOCK_N must be a multiple of WARPS * 4: every team gets as many tokens");
static_assert(STAGES >= 2, "STAGES must be 2 or more: one tile is used while others load");
static_assert(STAGES * BLOCK_N * HEAD_DIM * 4 <= 227 * 1024, "the ring exceeds the shared memory of any block");
static_assert(CLUSTER == 2 || CLUSTER == 4 || CLUSTER == 8, "CLUSTER must be 2, 4 or 8: sizes that every board grants");

constexpr int THREADS = WARPS * 32;
constexpr int LANES = HEAD_DIM / 8, TEAMS = THREADS / LANES; // LANES neighbours are a team and share a token
constexpr int TOKENS = BLOCK_N / TEAMS;                      // of a tile, per team
constexpr int TILE = BLOCK_N * LANES;                        // packets of K (or V) in a tile
constexpr int SHARE = HEAD_DIM / CLUSTER;                    // columns that a block merges
constexpr float NEVER = -1e30f;                              // below any score; exp of it is 0

struct __align__(16) Half8 {
  __half h[8];
};

__device__ __forceinline__ void cp_async(Half8* to, const Half8* from) {
  const unsigned at = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ float peer(const float* p, int rank) { // what block `rank` of the cluster holds at p
  float f;
  asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.f32 %0, [a]; }"
               : "=f"(f) : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(rank) : "memory");
  return f;
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS)
flash_decode(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
             const int* __restrict__ table, const int* __restrict__ lengths, __half* __restrict__ out,
             int heads, int page, int max_pages, float scale) {
  extern __shared__ Half8 ring[]; // [STAGES][K, V][TOKENS][THREADS]
  const int rank = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int length = lengths[b], chunk = (length + CLUSTER - 1) / CLUSTER;
  const int begin = min(rank * chunk, length), end = min(begin + chunk, length);
  const int tiles = (end - begin + BLOCK_N - 1) / BLOCK_N;
  const size_t slot = (size_t)b * heads + head;

  int row[TOKENS]; // cache rows of this team's tokens in the next tile to copy; past the end the last one again
  const auto look_up = [&](int tile) {
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const int token = min(begin + tile * BLOCK_N + t * TEAMS + team, end - 1);
      row[t] = table[b * max_pages + token / page] * page + token % page;
    }
  };
  const auto copy = [&](int tile) { // one group, empty past the end
    Half8* to = ring + tile % STAGES * 2 * TILE + threadIdx.x;
#pragma unroll
    for (int t = 0; t < TOKENS && tile < tiles; ++t) {
      const size_t from = ((size_t)row[t] * heads + head) * LANES + lane;
      cp_async(to + t * THREADS, reinterpret_cast<const Half8*>(k) + from);
      cp_async(to + TILE + t * THREADS, reinterpret_cast<const Half8*>(v) + from);
    }
    cp_async_commit();
    if (tile + 1 < tiles) look_up(tile + 1);
  };

  if (tiles > 0) look_up(0);
  for (int s = 0; s < STAGES - 1; ++s) copy(s);
  const Half8 mine = reinterpret_cast<const Half8*>(q + slot * HEAD_DIM)[lane];
  float query[8], acc[8] = {}, best = NEVER, total = 0.0f;
  for (int i = 0; i < 8; ++i) query[i] = __half2float(mine.h[i]) * scale;

  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<STAGES - 2>();
    copy(tile + STAGES - 1);
    const Half8* from = ring + tile % STAGES * 2 * TILE + threadIdx.x;
    float score[TOKENS] = {}, top = best;
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const Half8 key = from[t * THREADS];
      for (int i = 0; i < 8; ++i) score[t] += query[i] * __half2float(key.h[i]);
      for (int offset = LANES / 2; offset > 0; offset >>= 1) score[t] += __shfl_xor_sync(0xffffffffu, score[t], offset);
      if (begin + tile * BLOCK_N + t * TEAMS + team >= end) score[t] = 2 * NEVER;
      top = fmaxf(top, score[t]);
    }
    const float fix = __expf(best - top);
    best = top;
    total *= fix;
    for (int i = 0; i < 8; ++i) acc[i] *= fix;
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const float weight = __expf(score[t] - best);
      const Half8 value = from[TILE + t * THREADS];
      total += weight;
      for (int i = 0; i < 8; ++i) acc[i] += weight * __half2float(value.h[i]);
    }
  }

  __shared__ float team_best[TEAMS], team_total[TEAMS], team_acc[TEAMS][HEAD_DIM];
  __shared__ float block_best, block_total, block_acc[HEAD_DIM];
  if (lane == 0) team_best[team] = best, team_total[team] = total;
  for (int i = 0; i < 8; ++i) team_acc[team][lane * 8 + i] = acc[i];
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
    block_acc[d] = o;
    if (d == 0) block_best = top, block_total = sum;
  }
  cluster_sync(); // every block's result is there
  for (int d = rank * SHARE + threadIdx.x; d < (rank + 1) * SHARE; d += THREADS) {
    float peak = NEVER, norm = 0.0f, o = 0.0f;
    for (int r = 0; r < CLUSTER; ++r) peak = fmaxf(peak, peer(&block_best, r));
    for (int r = 0; r < CLUSTER; ++r) {
      const float fix = __expf(peer(&block_best, r) - peak);
      norm += peer(&block_total, r) * fix;
      o += peer(&block_acc[d], r) * fix;
    }
    out[slot * HEAD_DIM + d] = __float2half(o / norm);
  }
  cluster_sync(); // no block leaves while others read its memory
}
