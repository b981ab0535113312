// flash_decode/cp_async: out[b, h, :] = softmax(scale * q[b, h, :] . K[b, :, h, :]) @ V[b, :, h, :], paged fp16 cache.
//
// Split along the sequence as in split_kv, but tiles of BLOCK_N tokens of K and V stream through a ring
// of STAGES buffers in shared memory: cp.async keeps STAGES - 1 tiles in flight while one is used. A thread
// copies just the packets it will use itself, so the ring needs no barrier. Page table entries are read one
// tile ahead of the copies that need them, so no copy waits for its address.
// Gains over split_kv: loads outlive an iteration and cost no registers; the table's latency is hidden.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, heads, dim]; table [batch, max_pages]; lengths [batch];
//          part [batch, heads, SPLITS, dim]; part_ml [batch, heads, SPLITS] (max, sum).
// Launch: flash_decode_split, grid = (SPLITS, heads, batch), block = WARPS * 32,
//         dynamic shared memory = STAGES * BLOCK_N * HEAD_DIM * 4 bytes;
//         then flash_decode_combine, grid = batch * heads, block = HEAD_DIM.
// Needs:  sm_80 or later (cp.async).
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int HEAD_DIM = 128; // dim
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;      // warps per block
constexpr int BLOCK_N = 32;   // tokens per tile
constexpr int STAGES = 2;     // tiles in the ring
constexpr int SPLITS = 4;     // slices of the sequence
// -----------------------------------------------------------------------------

static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= 32, "WARPS must be a power of two, at most 32");
static_assert(BLOCK_N % (WARPS * 4) == 0, "BLOCK_N must be a multiple of WARPS * 4: every team gets as many tokens");
static_assert(STAGES >= 2, "STAGES must be 2 or more: one tile is used while others load");
static_assert(STAGES * BLOCK_N * HEAD_DIM * 4 <= 227 * 1024, "the ring exceeds the shared memory of any block");
static_assert(SPLITS >= 1 && SPLITS <= 32, "SPLITS must be 1 to 32: the combine is unrolled over them");

constexpr int THREADS = WARPS * 32;
constexpr int LANES = HEAD_DIM / 8;     // a team
constexpr int TEAMS = THREADS / LANES;
constexpr int TOKENS = BLOCK_N / TEAMS; // of a tile, per team
constexpr int TILE = BLOCK_N * LANES;   // packets of K (or V) in a tile
constexpr float NEVER = -1e30f;         // below any score; exp of it is 0

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

extern "C" __global__ void __launch_bounds__(THREADS)
flash_decode_split(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
                   const int* __restrict__ table, const int* __restrict__ lengths, float* __restrict__ part,
                   float2* __restrict__ part_ml, int heads, int page, int max_pages, float scale) {
  extern __shared__ Half8 ring[]; // [STAGES][K, V][TOKENS][THREADS]
  const int split = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int length = lengths[b], chunk = (length + SPLITS - 1) / SPLITS;
  const int begin = min(split * chunk, length), end = min(begin + chunk, length);
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
  if (lane == 0) team_best[team] = best;
  __syncthreads();
  float top = NEVER, sum = 0.0f;
  for (int i = 0; i < TEAMS; ++i) top = fmaxf(top, team_best[i]);
  const float fix = __expf(best - top);
  if (lane == 0) team_total[team] = total * fix;
  for (int i = 0; i < 8; ++i) team_acc[team][lane * 8 + i] = acc[i] * fix;
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
