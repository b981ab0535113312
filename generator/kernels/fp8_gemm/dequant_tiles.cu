// fp8_gemm/dequant_tiles: C[M, N] = (A * sa) @ (B * sb)^T, e4m3 in with block scales, fp32 sums, fp16 out.
//
// A tiled product on the CUDA cores that forgets about fp8 at once: every byte is decoded to fp32
// and multiplied by its scale on the way into shared memory, so the sums need no promotion. A block
// has 16 x 16 threads; each owns every 16th row and column of the tile and reads one value from
// shared memory per row and column and step of k.
//
// A is e4m3 [M, K], sa fp32 [M, K / 128]; B is e4m3 [N, K], sb fp32 [ceil(N / 128), K / 128].
//
// Launch: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = 256, no dynamic shared memory.
// Needs:  any arch, K % 128 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of C per block
constexpr int BLOCK_N = 64; // columns of C per block
constexpr int BLOCK_K = 16; // depth of a tile
// -----------------------------------------------------------------------------

constexpr int SCALE_BLOCK = 128;
constexpr int SIDE = 16; // the block is SIDE x SIDE threads
constexpr int THREADS = SIDE * SIDE;
constexpr int TM = BLOCK_M / SIDE, TN = BLOCK_N / SIDE; // outputs per thread

static_assert(BLOCK_M % SIDE == 0 && BLOCK_N % SIDE == 0, "BLOCK_M and BLOCK_N must be multiples of 16");
static_assert(TM * TN <= 64, "more than 64 outputs per thread spill");
static_assert(SCALE_BLOCK % BLOCK_K == 0, "BLOCK_K must divide 128: a tile has one scale per row");
static_assert((BLOCK_M + BLOCK_N) * (BLOCK_K + 1) * 4 <= 48 * 1024, "tiles exceed 48 KB of static shared memory");

// e4m3 bits moved to where fp32 keeps them; the exponent bias differs by 120. Exact, subnormals too.
__device__ __forceinline__ float decode(unsigned byte) {
  return __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
}

// Decodes rows x BLOCK_K of a row-major [limit, K] matrix into shared memory, zero outside.
template <int ROWS_PER_SCALE, int TILE_ROWS>
__device__ __forceinline__ void load_tile(float (&tile)[TILE_ROWS][BLOCK_K + 1], const unsigned char* src, const float* scale,
                                          int row0, int k0, int limit, int K) {
  for (int i = threadIdx.x; i < TILE_ROWS * BLOCK_K; i += THREADS) {
    const int r = i / BLOCK_K, c = i % BLOCK_K, row = row0 + r;
    const float s = row < limit ? scale[row / ROWS_PER_SCALE * (K / SCALE_BLOCK) + k0 / SCALE_BLOCK] : 0.0f;
    tile[r][c] = row < limit ? decode(src[(size_t)row * K + k0 + c]) * s : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fp8_gemm(const unsigned char* __restrict__ A, const float* __restrict__ sa, const unsigned char* __restrict__ B,
         const float* __restrict__ sb, __half* __restrict__ C, int M, int N, int K) {
  __shared__ float tile_a[BLOCK_M][BLOCK_K + 1]; // + 1: rows start in different banks
  __shared__ float tile_b[BLOCK_N][BLOCK_K + 1];
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  float acc[TM][TN] = {};

  for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
    load_tile<1>(tile_a, A, sa, m0, k0, M, K);
    load_tile<SCALE_BLOCK>(tile_b, B, sb, n0, k0, N, K);
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BLOCK_K; ++kk) {
      float a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) a[i] = tile_a[ty + i * SIDE][kk];
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j] = tile_b[tx + j * SIDE][kk];
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int m = m0 + ty + i * SIDE, n = n0 + tx + j * SIDE;
      if (m < M && n < N) C[(size_t)m * N + n] = __float2half(acc[i][j]);
    }
}
