// fp8_gemm/mma_e4m3: C[M, N] = (A * sa) @ (B * sb)^T, e4m3 in with block scales, fp32 sums, fp16 out.
//
// A STAGES-deep cp.async ring feeds XOR-swizzled tiles of raw bytes; warps (2 along M, WARPS / 2 along
// N) read them with ldmatrix, four bytes of k to a register, and multiply with mma.sync m16n8k32 on
// e4m3. Sums of 128 of K, one scale block, are scaled and added to a second set of accumulators.
// Gains over dequant_mma: no decoding, one barrier a step, half the shared-memory traffic.
//
// A is e4m3 [M, K], sa fp32 [M, K / 128]; B is e4m3 [N, K], sb fp32 [ceil(N / 128), K / 128].
//
// Launch: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = 32 * WARPS,
//         dynamic shared memory = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K bytes.
// Needs:  sm_89 or newer, K % 128 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of C per block
constexpr int BLOCK_N = 64; // columns of C per block
constexpr int BLOCK_K = 64; // depth of a tile
constexpr int STAGES = 3;   // tiles in flight or in use
constexpr int WARPS = 4;    // warps per block, 2 along M
// -----------------------------------------------------------------------------

constexpr int SCALE_BLOCK = 128;
constexpr int THREADS = 32 * WARPS;
constexpr int WM = BLOCK_M / 2, WN = BLOCK_N / (WARPS / 2); // warp tile
constexpr int MT = WM / 16, NT = WN / 8;                    // mma tiles per warp
constexpr int CHUNKS = BLOCK_K / 16;                        // 16-byte chunks per tile row
constexpr int PROMOTE = SCALE_BLOCK / BLOCK_K;              // steps that share their scales
constexpr int TILE = (BLOCK_M + BLOCK_N) * BLOCK_K;         // bytes per stage, A's rows first

static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp tile must be a multiple of 16 x 16");
static_assert(MT * NT * 4 <= 64, "more than 64 accumulators, which are kept twice, spill");
static_assert(BLOCK_K == 64 || BLOCK_K == 128, "BLOCK_K must be 64 or 128: it divides a scale block");
static_assert(SCALE_BLOCK % BLOCK_N == 0, "BLOCK_N must divide 128: a block has one scale of B at a time");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");

// Offset in bytes of (row, chunk); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzle(int row, int chunk) {
  return row * BLOCK_K + ((chunk ^ (row * CHUNKS / 8 % CHUNKS)) * 16);
}

__device__ __forceinline__ unsigned smem_addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool live) {
  const int bytes = live ? 16 : 0; // 0: the chunk is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_addr(dst)), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_addr(p)) : "memory");
}
__device__ __forceinline__ void mma_16832(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies one TILE_ROWS x BLOCK_K tile of a row-major [limit, K] matrix to rows `at`.. of a stage.
template <int TILE_ROWS>
__device__ __forceinline__ void load_tile(unsigned char* stage, int at, const unsigned char* src, int row0, int k0, int limit, int K) {
#pragma unroll
  for (int i = threadIdx.x; i < TILE_ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    const bool live = row0 + r < limit;
    cp_async16(stage + swizzle(at + r, c), live ? src + (size_t)(row0 + r) * K + k0 + c * 16 : src, live);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fp8_gemm(const unsigned char* __restrict__ A, const float* __restrict__ sa, const unsigned char* __restrict__ B,
         const float* __restrict__ sb, __half* __restrict__ C, int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char smem[]; // [STAGES][BLOCK_M + BLOCK_N][BLOCK_K]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % 2 * WM, warp_n = warp / 2 * WN;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int steps = K / BLOCK_K;
  float total[MT][NT][4] = {}, acc[MT][NT][4] = {}, scale[MT][2];

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      load_tile<BLOCK_M>(smem + s * TILE, 0, A, m0, s * BLOCK_K, M, K);
      load_tile<BLOCK_N>(smem + s * TILE, BLOCK_M, B, n0, s * BLOCK_K, N, K);
    }
    cp_async_commit();
  }

  for (int step = 0; step < steps; ++step) {
    if (step % PROMOTE == 0) {
      const int block = step / PROMOTE;
      const float of_b = sb[n0 / SCALE_BLOCK * (K / SCALE_BLOCK) + block];
#pragma unroll
      for (int i = 0; i < MT * 2; ++i) {
        const int m = min(m0 + warp_m + i * 8 + lane / 4, M - 1);
        scale[i / 2][i % 2] = sa[(size_t)m * (K / SCALE_BLOCK) + block] * of_b;
      }
    }

    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int next = step + STAGES - 1;
    if (next < steps) {
      load_tile<BLOCK_M>(smem + next % STAGES * TILE, 0, A, m0, next * BLOCK_K, M, K);
      load_tile<BLOCK_N>(smem + next % STAGES * TILE, BLOCK_M, B, n0, next * BLOCK_K, N, K);
    }
    cp_async_commit();

    const unsigned char* tile = smem + step % STAGES * TILE;
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 32; ++kk) {
      unsigned a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) ldmatrix_x4(a[i], tile + swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < NT / 2; ++j)
        ldmatrix_x4(b[j], tile + swizzle(BLOCK_M + warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) mma_16832(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }

    if (step % PROMOTE == PROMOTE - 1) {
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            total[i][j][e] += acc[i][j][e] * scale[i][e / 2];
            acc[i][j][e] = 0.0f;
          }
    }
  }

#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = m0 + warp_m + i * 16 + h * 8 + lane / 4, n = n0 + warp_n + j * 8 + lane % 4 * 2;
        if (m < M && n < N)
          *reinterpret_cast<__half2*>(C + (size_t)m * N + n) = __floats2half2_rn(total[i][j][h * 2], total[i][j][h * 2 + 1]);
      }
}
