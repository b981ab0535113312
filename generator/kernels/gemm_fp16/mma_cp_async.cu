// gemm_fp16/mma_cp_async: C[M, N] = A[M, K] @ B[N, K]^T, fp16 in and out, fp32 sums.
//
// A STAGES-deep cp.async pipeline feeds XOR-swizzled shared-memory tiles; warps read them with
// ldmatrix and multiply with mma.sync m16n8k16. Rows past M or N and columns past K are zero-filled
// by cp.async (src-size 0), so only the store needs a bounds check. Blocks walk C in bands of SWIZZLE
// tile rows: those that run together share their rows of A and B in L2.
// Gains over smem_tiles: tensor cores, loads that overlap the arithmetic, each operand fetched from
// shared memory once per warp tile.
//
// Launch: grid = ceil(M / BLOCK_M) * ceil(N / BLOCK_N), block = 32 * WARPS,
//         dynamic shared memory = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes.
// Needs:  sm_80 or newer, K % 8 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 128; // rows of C per block
constexpr int BLOCK_N = 128; // columns of C per block
constexpr int BLOCK_K = 32;  // columns of A and B per stage
constexpr int WARPS = 4;     // warps per block
constexpr int STAGES = 2;    // tiles in shared memory: one in use, the others on their way
constexpr int SWIZZLE = 8;   // tile rows of C in a band
// -----------------------------------------------------------------------------

constexpr int THREADS = 32 * WARPS;
constexpr int WARPS_M = BLOCK_M > 64 ? BLOCK_M / 64 : 1, WARPS_N = WARPS / WARPS_M; // a warp owns up to 64 rows
constexpr int WARP_TILE_M = BLOCK_M / WARPS_M, WARP_TILE_N = BLOCK_N / WARPS_N;
constexpr int MMAS_M = WARP_TILE_M / 16, MMAS_N = WARP_TILE_N / 8;
constexpr int CHUNKS = BLOCK_K / 8; // 16-byte chunks in a tile row

static_assert(BLOCK_M % 16 == 0 && (BLOCK_M <= 64 || BLOCK_M % 64 == 0), "BLOCK_M must be 16, 32, 48 or a multiple of 64");
static_assert(WARPS % WARPS_M == 0, "WARPS must be a multiple of BLOCK_M / 64");
static_assert(BLOCK_N % (16 * WARPS_N) == 0, "a warp needs a multiple of 16 columns");
static_assert(BLOCK_K == 32 || BLOCK_K == 64, "BLOCK_K must be 32 or 64: a swizzled row is 64 or 128 bytes");
static_assert(STAGES >= 2, "a pipeline needs two stages");

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
gemm_fp16(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C, int M, int N, int K) {
  extern __shared__ __align__(128) __half smem[];
  __half* tile_a = smem;                              // [STAGES][BLOCK_M][BLOCK_K]
  __half* tile_b = smem + STAGES * BLOCK_M * BLOCK_K; // [STAGES][BLOCK_N][BLOCK_K]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_TILE_M, warp_n = warp % WARPS_N * WARP_TILE_N;

  const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, band = SWIZZLE * ((N + BLOCK_N - 1) / BLOCK_N);
  const int first = blockIdx.x / band * SWIZZLE, height = min(SWIZZLE, tiles_m - first), place = blockIdx.x % band;
  const int m0 = (first + place % height) * BLOCK_M, n0 = place / height * BLOCK_N;
  const int steps = (K + BLOCK_K - 1) / BLOCK_K;
  float acc[MMAS_M][MMAS_N][4] = {};

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      load_tile<BLOCK_M>(tile_a + s * BLOCK_M * BLOCK_K, A, m0, s * BLOCK_K, M, K);
      load_tile<BLOCK_N>(tile_b + s * BLOCK_N * BLOCK_K, B, n0, s * BLOCK_K, N, K);
    }
    cp_async_commit();
  }

  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int next = step + STAGES - 1;
    if (next < steps) {
      load_tile<BLOCK_M>(tile_a + next % STAGES * BLOCK_M * BLOCK_K, A, m0, next * BLOCK_K, M, K);
      load_tile<BLOCK_N>(tile_b + next % STAGES * BLOCK_N * BLOCK_K, B, n0, next * BLOCK_K, N, K);
    }
    cp_async_commit();

    const __half* a_now = tile_a + step % STAGES * BLOCK_M * BLOCK_K;
    const __half* b_now = tile_b + step % STAGES * BLOCK_N * BLOCK_K;
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
      unsigned a[MMAS_M][4], b[MMAS_N / 2][4];
#pragma unroll
      for (int i = 0; i < MMAS_M; ++i)
        ldmatrix_x4(a[i], a_now + swizzled(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < MMAS_N / 2; ++j)
        ldmatrix_x4(b[j], b_now + swizzled(warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
        for (int j = 0; j < MMAS_N; ++j) mma_16816(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }

#pragma unroll
  for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
    for (int j = 0; j < MMAS_N; ++j) {
      const int row = m0 + warp_m + i * 16 + lane / 4, col = n0 + warp_n + j * 8 + lane % 4 * 2;
      if (col >= N) continue;
      if (row < M)
        *reinterpret_cast<__half2*>(C + (size_t)row * N + col) = __floats2half2_rn(acc[i][j][0], acc[i][j][1]);
      if (row + 8 < M)
        *reinterpret_cast<__half2*>(C + (size_t)(row + 8) * N + col) = __floats2half2_rn(acc[i][j][2], acc[i][j][3]);
    }
}
