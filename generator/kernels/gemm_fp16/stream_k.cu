// gemm_fp16/stream_k: C[M, N] = A[M, K] @ B[N, K]^T, fp16 in and out, fp32 sums.
//
// The pipeline of mma_cp_async on a fixed grid of about one wave. The slices of the first tiles, one to
// two waves of them, are dealt out to the blocks in equal shares that run on across tile borders; the
// tiles after those are whole rounds. A block that has part of a tile leaves it in scratch and draws a
// ticket; the one that draws the last adds the parts in the order of K. Nobody waits, and the result
// does not depend on the schedule.
// Gains over mma_cp_async: no half-empty last wave, so that large tiles suit any C. It pays with parts
// written and read again through L2; blocks in their shares are at different K and find less of A and B there.
//
// Launch: grid = PERSISTENT, block = BLOCK_M * BLOCK_N / 128,
//         dynamic shared memory = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes.
//         partial: fp32 [2 * PERSISTENT, BLOCK_M * BLOCK_N]; ticket: [2 * PERSISTENT], zero before and after.
// Needs:  sm_80 or newer, K % 8 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 128;    // rows of C per tile
constexpr int BLOCK_N = 128;    // columns of C per tile
constexpr int BLOCK_K = 32;     // columns of A and B per stage
constexpr int STAGES = 3;       // slices in shared memory: one in use, the others on their way
constexpr int PERSISTENT = 216; // blocks, one or two for each multiprocessor of the board
// -----------------------------------------------------------------------------

constexpr int WARPS_N = BLOCK_N / 64, THREADS = 32 * BLOCK_M / 64 * WARPS_N; // a warp owns 64 x 64 of a tile
constexpr int SUMS = 64 * 64 / 32;  // per thread
constexpr int CHUNKS = BLOCK_K / 8; // 16-byte chunks in a tile row
constexpr int LEAST = 4;            // slices that are worth a block

static_assert(BLOCK_M % 64 == 0 && BLOCK_N % 64 == 0, "a tile must be whole warp tiles of 64 x 64");
static_assert(BLOCK_K == 32 || BLOCK_K == 64, "BLOCK_K must be 32 or 64: a swizzled row is 64 or 128 bytes");
static_assert(STAGES >= 2, "a pipeline needs two stages");
static_assert(PERSISTENT >= 2, "one block has nobody to share with");

// Offset in halves of (row, chunk); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzled(int row, int chunk) {
  return row * BLOCK_K + ((chunk ^ ((row * CHUNKS / 8) % CHUNKS)) * 8);
}

__device__ __forceinline__ unsigned smem_addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool live) {
  const int bytes = live ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_addr(dst)), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_addr(p)) : "memory");
}
__device__ __forceinline__ void mma_16816(float* c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies one TILE_ROWS x BLOCK_K tile of a row-major [rows, K] matrix into shared memory.
template <int TILE_ROWS>
__device__ __forceinline__ void load_tile(__half* tile, const __half* src, int row0, int k0, int rows, int K) {
#pragma unroll
  for (int i = threadIdx.x; i < TILE_ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    const bool live = row0 + r < rows && k0 + c * 8 < K;
    cp_async16(tile + swizzled(r, c), live ? src + (size_t)(row0 + r) * K + k0 + c * 8 : src, live);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_fp16(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C, float* partial, unsigned* ticket,
          int M, int N, int K) {
  extern __shared__ __align__(128) __half smem[];
  __shared__ bool complete;
  const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N * 64, warp_n = threadIdx.x / 32 % WARPS_N * 64;
  const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles = tiles_m * ((N + BLOCK_N - 1) / BLOCK_N);
  const int steps = (K + BLOCK_K - 1) / BLOCK_K, blocks = min(PERSISTENT, (tiles * steps + LEAST - 1) / LEAST);
  const int block = blockIdx.x, shared = tiles - max(tiles / blocks - 1, 0) * blocks; // tiles dealt out in shares
  if (block >= blocks) return;
  const int share = (shared * steps + blocks - 1) / blocks, end = min((block + 1) * share, shared * steps);

  for (int at = block * share, round = shared + block; at < end || round < tiles;) {
    const bool sharing = at < end;
    const int tile = sharing ? at / steps : round, first = sharing ? at % steps : 0;
    const int count = sharing ? min(steps - first, end - at) : steps;
    (sharing ? at : round) += sharing ? count : blocks;
    const int m0 = tile % tiles_m * BLOCK_M, n0 = tile / tiles_m * BLOCK_N;

    const auto fetch = [&](int step) {
      __half* stage = smem + step % STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K;
      if (step < count) load_tile<BLOCK_M>(stage, A, m0, (first + step) * BLOCK_K, M, K);
      if (step < count) load_tile<BLOCK_N>(stage + BLOCK_M * BLOCK_K, B, n0, (first + step) * BLOCK_K, N, K);
      cp_async_commit();
    };
    __syncthreads(); // all are done with the stages of the tile before
    for (int s = 0; s < STAGES - 1; ++s) fetch(s);
    float acc[SUMS] = {};
    for (int step = 0; step < count; ++step) {
      cp_async_wait<STAGES - 2>();
      __syncthreads();
      fetch(step + STAGES - 1);
      const __half* a_now = smem + step % STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K;
      const __half* b_now = a_now + BLOCK_M * BLOCK_K;
#pragma unroll
      for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
        unsigned a[4][4], b[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ldmatrix_x4(a[i], a_now + swizzled(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
          ldmatrix_x4(b[i], b_now + swizzled(warp_n + i * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 8; ++j) mma_16816(acc + (i * 8 + j) * 4, a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }

    if (count < steps) { // a share has two parts at most: of the tile it begins in, and of the one it ends in
      const int from = tile * steps / share, to = ((tile + 1) * steps - 1) / share;
      const auto part = [&](int of) {
        return partial + (size_t)(of * 2 + (of * share < tile * steps)) * BLOCK_M * BLOCK_N + threadIdx.x;
      };
#pragma unroll
      for (int i = 0; i < SUMS; ++i) part(block)[i * THREADS] = acc[i];
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) complete = atomicInc(&ticket[tile], to - from) == to - from; // which wraps it to zero
      __syncthreads();
      if (!complete) continue;
      __threadfence();
#pragma unroll
      for (int i = 0; i < SUMS; ++i) acc[i] = 0.0f;
      for (int of = from; of <= to; ++of)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) acc[i] += part(of)[i * THREADS];
    }

#pragma unroll
    for (int i = 0; i < SUMS; i += 2) { // two columns of the upper or lower half of a 16 x 8 product
      const int row = m0 + warp_m + i / 32 * 16 + i / 2 % 2 * 8 + lane / 4, col = n0 + warp_n + i / 4 % 8 * 8 + lane % 4 * 2;
      if (row < M && col < N) *reinterpret_cast<__half2*>(C + (size_t)row * N + col) = __floats2half2_rn(acc[i], acc[i + 1]);
    }
  }
}
