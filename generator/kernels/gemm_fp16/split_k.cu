// gemm_fp16/split_k: C[M, N] = A[M, K] @ B[N, K]^T, fp16 in and out, fp32 sums, for few rows M.
//
// The pipeline of mma_cp_async on tiles of at most 64 rows, with K cut into SPLITS parts, one block
// each: a short C still fills the machine. A block writes its fp32 partial tile; a second kernel adds
// the parts in a fixed order, so the result does not depend on the schedule.
// Gains over mma_cp_async: more blocks than tiles, shorter loops, little padding of M; it pays with
// SPLITS fp32 copies of C written and read again through L2, and one more launch.
//
// Launch: gemm_fp16_split:  grid = (ceil(M / BLOCK_M) * ceil(N / BLOCK_N), SPLITS), block = 128,
//                           dynamic shared memory = STAGES * (BLOCK_M + BLOCK_N) * 128 bytes.
//         gemm_fp16_reduce: grid = ceil(M * N / 512), block = 256.
//         partial: fp32 [SPLITS, M, N].
// Needs:  sm_80 or newer, K % 8 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64;  // rows of C per block
constexpr int BLOCK_N = 128; // columns of C per block
constexpr int STAGES = 3;    // tiles in shared memory: one in use, the others on their way
constexpr int SPLITS = 2;    // parts of K
// -----------------------------------------------------------------------------

constexpr int WARPS = 4, THREADS = 32 * WARPS; // side by side along N, each with all rows
constexpr int BLOCK_K = 64;                    // 64 halves are one 128-byte swizzled row
constexpr int WARP_TILE_N = BLOCK_N / WARPS;
constexpr int MMAS_M = BLOCK_M / 16, MMAS_N = WARP_TILE_N / 8;
constexpr int CHUNKS = BLOCK_K / 8; // 16-byte chunks in a tile row
constexpr int REDUCE_THREADS = 256;

static_assert(BLOCK_M == 16 || BLOCK_M == 32 || BLOCK_M == 64, "BLOCK_M must be 16, 32 or 64: one warp holds all rows");
static_assert(BLOCK_N % (16 * WARPS) == 0, "a warp needs a multiple of 16 columns");
static_assert(STAGES >= 2, "a pipeline needs two stages");
static_assert(SPLITS >= 2, "one part of K needs no reduction: use mma_cp_async");

// Offset in halves of (row, chunk); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzled(int row, int chunk) {
  return row * BLOCK_K + (chunk ^ row % 8) * 8;
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
__device__ __forceinline__ void mma_16816(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
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
gemm_fp16_split(const __half* __restrict__ A, const __half* __restrict__ B, float* __restrict__ partial, int M, int N, int K) {
  extern __shared__ __align__(128) __half smem[];
  __half* tile_a = smem;                              // [STAGES][BLOCK_M][BLOCK_K]
  __half* tile_b = smem + STAGES * BLOCK_M * BLOCK_K; // [STAGES][BLOCK_N][BLOCK_K]
  const int lane = threadIdx.x % 32, warp_n = threadIdx.x / 32 * WARP_TILE_N;
  const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M; // tiles of one column run together and share B in L2
  const int m0 = blockIdx.x % tiles_m * BLOCK_M, n0 = blockIdx.x / tiles_m * BLOCK_N;
  const int all = (K + BLOCK_K - 1) / BLOCK_K, part = (all + SPLITS - 1) / SPLITS, first = blockIdx.y * part;
  const int steps = max(0, min(part, all - first));
  float acc[MMAS_M][MMAS_N][4] = {};

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      load_tile<BLOCK_M>(tile_a + s * BLOCK_M * BLOCK_K, A, m0, (first + s) * BLOCK_K, M, K);
      load_tile<BLOCK_N>(tile_b + s * BLOCK_N * BLOCK_K, B, n0, (first + s) * BLOCK_K, N, K);
    }
    cp_async_commit();
  }

  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int next = step + STAGES - 1;
    if (next < steps) {
      load_tile<BLOCK_M>(tile_a + next % STAGES * BLOCK_M * BLOCK_K, A, m0, (first + next) * BLOCK_K, M, K);
      load_tile<BLOCK_N>(tile_b + next % STAGES * BLOCK_N * BLOCK_K, B, n0, (first + next) * BLOCK_K, N, K);
    }
    cp_async_commit();

    const __half* a_now = tile_a + step % STAGES * BLOCK_M * BLOCK_K;
    const __half* b_now = tile_b + step % STAGES * BLOCK_N * BLOCK_K;
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
      unsigned a[MMAS_M][4], b[MMAS_N / 2][4];
#pragma unroll
      for (int i = 0; i < MMAS_M; ++i)
        ldmatrix_x4(a[i], a_now + swizzled(i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < MMAS_N / 2; ++j)
        ldmatrix_x4(b[j], b_now + swizzled(warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
        for (int j = 0; j < MMAS_N; ++j) mma_16816(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }

  float* out = partial + (size_t)blockIdx.y * M * N;
#pragma unroll
  for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
    for (int j = 0; j < MMAS_N; ++j) {
      const int row = m0 + i * 16 + lane / 4, col = n0 + warp_n + j * 8 + lane % 4 * 2;
      if (col >= N) continue;
      if (row < M) *reinterpret_cast<float2*>(out + (size_t)row * N + col) = make_float2(acc[i][j][0], acc[i][j][1]);
      if (row + 8 < M) *reinterpret_cast<float2*>(out + (size_t)(row + 8) * N + col) = make_float2(acc[i][j][2], acc[i][j][3]);
    }
}

extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
gemm_fp16_reduce(const float2* __restrict__ partial, __half2* __restrict__ C, int M, int N) {
  const int i = blockIdx.x * REDUCE_THREADS + threadIdx.x, pairs = M * N / 2;
  if (i >= pairs) return;
  float2 sum = partial[i];
#pragma unroll
  for (int s = 1; s < SPLITS; ++s) {
    const float2 f = partial[(size_t)s * pairs + i];
    sum = make_float2(sum.x + f.x, sum.y + f.y);
  }
  C[i] = __floats2half2_rn(sum.x, sum.y);
}
