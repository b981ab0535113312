// gemm_fp16/smem_tiles: C[M, N] = A[M, K] @ B[N, K]^T, fp16 in and out, fp32 sums.
//
// One block owns a BLOCK_M x BLOCK_N tile of C, one thread ROWS elements of one of its columns. The
// block stages a slice of A and of B in shared memory as fp32, multiplies, and goes on to the next
// slice. Tensor cores idle, no load is in flight during the arithmetic, and every multiply-add has to
// fetch its operands from shared memory.
//
// Launch: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = BLOCK_N * BLOCK_M / ROWS,
//         no dynamic shared memory.
// Needs:  any arch.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 32; // rows of C per block
constexpr int BLOCK_N = 32; // columns of C per block
constexpr int BLOCK_K = 32; // columns of A and B staged at a time
constexpr int ROWS = 2;     // rows of C per thread
// -----------------------------------------------------------------------------

constexpr int THREADS = BLOCK_N * BLOCK_M / ROWS;

static_assert(BLOCK_M % ROWS == 0, "ROWS must divide BLOCK_M");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(THREADS % 32 == 0, "a block must be whole warps");
static_assert(BLOCK_K % 16 == 0, "BLOCK_K must be whole 32-byte sectors of halves");

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_fp16(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C, int M, int N, int K) {
  __shared__ __align__(16) float tile_a[BLOCK_M][BLOCK_K];
  __shared__ float tile_b[BLOCK_K][BLOCK_N + 1]; // transposed; the odd pitch spreads a column over all banks
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int row = threadIdx.x / BLOCK_N * ROWS, col = threadIdx.x % BLOCK_N;
  float sum[ROWS] = {};

  for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
    for (int i = threadIdx.x; i < BLOCK_M * BLOCK_K; i += THREADS) {
      const int r = i / BLOCK_K, c = i % BLOCK_K;
      const bool live = m0 + r < M && k0 + c < K;
      tile_a[r][c] = live ? __half2float(A[(size_t)(m0 + r) * K + k0 + c]) : 0.0f;
    }
    for (int i = threadIdx.x; i < BLOCK_N * BLOCK_K; i += THREADS) {
      const int r = i / BLOCK_K, c = i % BLOCK_K;
      const bool live = n0 + r < N && k0 + c < K;
      tile_b[c][r] = live ? __half2float(B[(size_t)(n0 + r) * K + k0 + c]) : 0.0f;
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k)
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sum[i] += tile_a[row + i][k] * tile_b[k][col];
    __syncthreads(); // all have read the slice before the next one replaces it
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i)
    if (m0 + row + i < M && n0 + col < N) C[(size_t)(m0 + row + i) * N + n0 + col] = __float2half(sum[i]);
}
