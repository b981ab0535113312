// int8_gemm/dp4a: C[M, N] = (A[M, K] @ B[N, K]^T) * row_scale[M] * col_scale[N], int8 in, int32 sums, fp16 out.
//
// One block owns a BLOCK_M x BLOCK_N tile of C, one thread ROWS elements of one of its columns. The
// block stages a slice of A and of B in shared memory as words of four numbers along K, multiplies
// them with __dp4a, and goes on to the next slice. Tensor cores idle, no load is in flight during the
// arithmetic, and every __dp4a has to fetch its words from shared memory.
//
// Launch: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = BLOCK_N * BLOCK_M / ROWS,
//         no dynamic shared memory.
// Needs:  any arch, K % 4 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of C per block
constexpr int BLOCK_N = 64; // columns of C per block
constexpr int BLOCK_K = 32; // columns of A and B staged at a time
constexpr int ROWS = 4;     // rows of C per thread
// -----------------------------------------------------------------------------

constexpr int THREADS = BLOCK_N * BLOCK_M / ROWS;
constexpr int WORDS = BLOCK_K / 4;

static_assert(BLOCK_M % ROWS == 0, "ROWS must divide BLOCK_M");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(THREADS % 32 == 0, "a block must be whole warps");
static_assert(BLOCK_K % 32 == 0, "BLOCK_K must be whole 32-byte sectors");

extern "C" __global__ void __launch_bounds__(THREADS)
int8_gemm(const int* __restrict__ A, const int* __restrict__ B, const float* __restrict__ row_scale,
          const float* __restrict__ col_scale, __half* __restrict__ C, int M, int N, int K) {
  __shared__ int tile_a[BLOCK_M][WORDS + 1]; // the odd pitch spreads a column over all banks
  __shared__ int tile_b[BLOCK_N][WORDS + 1];
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N, words = K / 4;
  const int row = threadIdx.x / BLOCK_N * ROWS, col = threadIdx.x % BLOCK_N;
  int sum[ROWS] = {};

  for (int k0 = 0; k0 < words; k0 += WORDS) {
    for (int i = threadIdx.x; i < BLOCK_M * WORDS; i += THREADS) {
      const int r = i / WORDS, c = i % WORDS;
      const bool live = m0 + r < M && k0 + c < words;
      tile_a[r][c] = live ? A[(size_t)(m0 + r) * words + k0 + c] : 0;
    }
    for (int i = threadIdx.x; i < BLOCK_N * WORDS; i += THREADS) {
      const int r = i / WORDS, c = i % WORDS;
      const bool live = n0 + r < N && k0 + c < words;
      tile_b[r][c] = live ? B[(size_t)(n0 + r) * words + k0 + c] : 0;
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < WORDS; ++k)
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sum[i] = __dp4a(tile_a[row + i][k], tile_b[col][k], sum[i]);
    __syncthreads(); // all have read the slice before the next one replaces it
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int m = m0 + row + i, n = n0 + col;
    if (m < M && n < N) C[(size_t)m * N + n] = __float2half(sum[i] * row_scale[m] * col_scale[n]);
  }
}
