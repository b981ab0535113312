// fp8_gemm/mxfp8: C[M, N] = (A * sa) @ (B * sb)^T, e4m3 in with block scales, fp32 sums, fp16 out.
//
// GeForce Blackwell halves the rate of mma on e4m3 with fp32 sums, but not that of its block-scaled form. The scales of that
// form are powers of two, those of the op are not: the hardware's stay 1, and the sums of 128 of K, one scale block, are scaled
// in fp32. A STAGES-deep cp.async ring feeds XOR-swizzled tiles of raw bytes; a warp (2 along M, WARPS / 2 along N) keeps its
// rows of B for the whole step in registers and takes 16 rows of A at a time, so only one row of mma tiles is not yet promoted.
// Gains over mma_e4m3: twice the tensor rate, sums that start from zero in the mma itself, one set of accumulators.
//
// A is e4m3 [M, K], sa fp32 [M, K / 128]; B is e4m3 [N, K], sb fp32 [ceil(N / 128), K / 128].
//
// Launch: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = 32 * WARPS,
//         dynamic shared memory = STAGES * (BLOCK_M + BLOCK_N) * 128 bytes.
// Needs:  sm_120a (block-scaled mma), K % 128 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of C per block
constexpr int BLOCK_N = 64; // columns of C per block
constexpr int STAGES = 3;   // tiles in flight or in use
constexpr int WARPS = 4;    // warps per block, 2 along M
// -----------------------------------------------------------------------------

constexpr int BLOCK_K = 128; // bytes of a tile row: one scale block
constexpr int THREADS = 32 * WARPS;
constexpr int WM = BLOCK_M / 2, WN = BLOCK_N / (WARPS / 2); // warp tile
constexpr int MT = WM / 16, NT = WN / 8;                    // mma tiles per warp
constexpr int CHUNKS = BLOCK_K / 16;                        // 16-byte chunks per tile row
constexpr int TILE = (BLOCK_M + BLOCK_N) * BLOCK_K;         // bytes per stage, A's rows first
constexpr unsigned UE8M0_ONE = 127;                         // ue8m0 is an exponent with bias 127

static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp tile must be a multiple of 16 x 16");
static_assert(MT * NT * 4 <= 64 && NT <= 8, "more than 64 sums, or 64 columns of B, spill");
static_assert(BLOCK_K % BLOCK_N == 0, "BLOCK_N must divide 128: a block has one scale of B at a time");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");

// Offset in bytes of (row, chunk); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzle(int row, int chunk) { return row * BLOCK_K + (chunk ^ row % 8) * 16; }

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
// Scales are taken from byte 0 of the first lanes of each quad; here all lanes hold the same.
__device__ __forceinline__ void mma_16832(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%10}, {0, 0};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(UE8M0_ONE));
}

extern "C" __global__ void __launch_bounds__(THREADS)
fp8_gemm(const unsigned char* __restrict__ A, const float* __restrict__ sa, const unsigned char* __restrict__ B,
         const float* __restrict__ sb, __half* __restrict__ C, int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char smem[]; // [STAGES][BLOCK_M + BLOCK_N][BLOCK_K]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % 2 * WM, warp_n = warp / 2 * WN;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int steps = K / BLOCK_K;
  float total[MT][NT][4] = {};

  auto fetch = [&](int step) { // one group per step, empty past the last
    if (step < steps)
      for (int i = threadIdx.x; i < TILE / 16; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS, row = r < BLOCK_M ? m0 + r : n0 + r - BLOCK_M;
        const bool live = row < (r < BLOCK_M ? M : N);
        const size_t at = live ? (size_t)row * K + step * BLOCK_K + c * 16 : 0;
        cp_async16(smem + step % STAGES * TILE + swizzle(r, c), (r < BLOCK_M ? A : B) + at, live);
      }
    cp_async_commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);

  for (int step = 0; step < steps; ++step) {
    float scale[MT][2];
#pragma unroll
    for (int i = 0; i < MT * 2; ++i) {
      const int m = min(m0 + warp_m + i * 8 + lane / 4, M - 1);
      scale[i / 2][i % 2] = sa[(size_t)m * steps + step] * sb[n0 / BLOCK_K * steps + step];
    }

    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);

    const unsigned char* tile = smem + step % STAGES * TILE;
    unsigned b[BLOCK_K / 32][NT / 2][4];
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 32; ++kk)
#pragma unroll
      for (int j = 0; j < NT / 2; ++j)
        ldmatrix_x4(b[kk][j], tile + swizzle(BLOCK_M + warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      float acc[NT][4] = {};
#pragma unroll
      for (int kk = 0; kk < BLOCK_K / 32; ++kk) {
        unsigned a[4];
        ldmatrix_x4(a, tile + swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < NT; ++j) mma_16832(acc[j], a, b[kk][j / 2][j % 2 * 2], b[kk][j / 2][j % 2 * 2 + 1]);
      }
#pragma unroll
      for (int t = 0; t < NT * 4; ++t) total[i][t / 4][t % 4] += acc[t / 4][t % 4] * scale[i][t % 4 / 2];
    }
  }

#pragma unroll
  for (int t = 0; t < MT * NT * 2; ++t) {
    const int i = t / 2 / NT, j = t / 2 % NT, h = t % 2;
    const int m = m0 + warp_m + i * 16 + h * 8 + lane / 4, n = n0 + warp_n + j * 8 + lane % 4 * 2;
    if (m < M && n < N)
      *reinterpret_cast<__half2*>(C + (size_t)m * N + n) = __floats2half2_rn(total[i][j][h * 2], total[i][j][h * 2 + 1]);
  }
}
