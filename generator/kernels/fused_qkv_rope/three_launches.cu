// fused_qkv_rope/three_launches: qkv = x @ w^T, rotary embedding on the q and k heads, then q, k and v apart.
//
// The way a framework strings it together: a tiled product on the CUDA cores into a scratch matrix,
// a kernel that rotates its q and k heads in place, a kernel that copies the three parts out. A
// block of the product has 16 x 16 threads; each owns every 16th row and column of the tile and
// reads one fp32 value from shared memory per row and column and step of k.
//
// qkv is [M, (H + 2 KV) D]: q heads, then k heads, then v heads. Rotation pairs element d of a head
// with d + D / 2; cosine and sine are fp32 [M, D / 2].
//
// Launch: qkv_gemm: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = 256;
//         rope: grid = ceil(M (H + KV) D / 2 / 256), block = 256;
//         split: grid = ceil(M N / 256), block = 256, with N = (H + 2 KV) D.
// Needs:  any arch.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of the product per block
constexpr int BLOCK_N = 64; // columns of the product per block
constexpr int BLOCK_K = 16; // depth of a tile
// -----------------------------------------------------------------------------

constexpr int SIDE = 16; // the block is SIDE x SIDE threads
constexpr int THREADS = SIDE * SIDE;
constexpr int TM = BLOCK_M / SIDE, TN = BLOCK_N / SIDE; // outputs per thread

static_assert(BLOCK_M % SIDE == 0 && BLOCK_N % SIDE == 0, "BLOCK_M and BLOCK_N must be multiples of 16");
static_assert(TM * TN <= 64, "more than 64 outputs per thread spill");
static_assert((BLOCK_M + BLOCK_N) * (BLOCK_K + 1) * 4 <= 48 * 1024, "tiles exceed 48 KB of static shared memory");

// Copies rows x BLOCK_K of a row-major [limit, K] matrix to shared memory as fp32, zero outside.
template <int TILE_ROWS>
__device__ __forceinline__ void load_tile(float (&tile)[TILE_ROWS][BLOCK_K + 1], const __half* src, int row0, int k0, int limit, int K) {
  for (int i = threadIdx.x; i < TILE_ROWS * BLOCK_K; i += THREADS) {
    const int r = i / BLOCK_K, c = i % BLOCK_K;
    tile[r][c] = row0 + r < limit && k0 + c < K ? __half2float(src[(size_t)(row0 + r) * K + k0 + c]) : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
qkv_gemm(const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ qkv, int M, int N, int K) {
  __shared__ float tile_x[BLOCK_M][BLOCK_K + 1]; // + 1: rows start in different banks
  __shared__ float tile_w[BLOCK_N][BLOCK_K + 1];
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  float acc[TM][TN] = {};

  for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
    load_tile(tile_x, x, m0, k0, M, K);
    load_tile(tile_w, w, n0, k0, N, K);
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BLOCK_K; ++kk) {
      float a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) a[i] = tile_x[ty + i * SIDE][kk];
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j] = tile_w[tx + j * SIDE][kk];
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
      if (m < M && n < N) qkv[(size_t)m * N + n] = __float2half(acc[i][j]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
rope(__half* __restrict__ qkv, const float* __restrict__ cosine, const float* __restrict__ sine, int M, int H, int KV, int D) {
  const int i = blockIdx.x * THREADS + threadIdx.x, half_dim = D / 2;
  const int d = i % half_dim, head = i / half_dim % (H + KV), m = i / half_dim / (H + KV);
  if (m >= M) return;
  __half* at = qkv + ((size_t)m * (H + 2 * KV) + head) * D + d;
  const float c = cosine[m * half_dim + d], s = sine[m * half_dim + d];
  const float lo = __half2float(at[0]), hi = __half2float(at[half_dim]);
  at[0] = __float2half(lo * c - hi * s);
  at[half_dim] = __float2half(hi * c + lo * s);
}

extern "C" __global__ void __launch_bounds__(THREADS)
split(const __half* __restrict__ qkv, __half* __restrict__ q, __half* __restrict__ k, __half* __restrict__ v,
      int M, int H, int KV, int D) {
  const int i = blockIdx.x * THREADS + threadIdx.x, N = (H + 2 * KV) * D;
  const int m = i / N, n = i % N;
  if (m >= M) return;
  if (n < H * D)
    q[(size_t)m * H * D + n] = qkv[i];
  else if (n < (H + KV) * D)
    k[(size_t)m * KV * D + n - H * D] = qkv[i];
  else
    v[(size_t)m * KV * D + n - (H + KV) * D] = qkv[i];
}
