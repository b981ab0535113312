// fp8_gemm/dequant_mma: C[M, N] = (A * sa) @ (B * sb)^T, e4m3 in with block scales, fp32 sums, fp16 out.
//
// For tensor cores without fp8 or without wgmma. A STAGES-deep cp.async ring brings raw bytes in; a step decodes one tile
// to fp16 for the whole block with integer operations: sign, exponent and mantissa move to where fp16 keeps them, exact and
// 2^8 too small, so the scale takes 2^16; within four k the order is 0 2 1 3, in A and B alike. Warps (2 along M, WARPS / 2
// along N) multiply with mma.sync m16n8k16; sums of 128 of K are scaled and added to a second set of accumulators. With
// SPLITS above 1, as many blocks share the K of a tile and leave fp32 partials to a second kernel.
// Gains over dequant_tiles: tensor cores, asynchronous 16-byte copies, 1.75 instructions per value decoded.
//
// A is e4m3 [M, K], sa fp32 [M, K / 128]; B is e4m3 [N, K], sb fp32 [ceil(N / 128), K / 128].
//
// Launch: fp8_gemm: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M), SPLITS), block = 32 * WARPS,
//         dynamic shared memory = (STAGES + 2) * (BLOCK_M + BLOCK_N) * BLOCK_K bytes;
//         reduce, if SPLITS > 1: grid = ceil(M * N / 256), block = 256. partial is fp32 [SPLITS, M, N].
// Needs:  sm_80 or newer, K % 128 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of C per block
constexpr int BLOCK_N = 64; // columns of C per block
constexpr int BLOCK_K = 64; // depth of a tile
constexpr int STAGES = 2;   // raw tiles in flight or in use
constexpr int WARPS = 4;    // warps per block, 2 along M
constexpr int SPLITS = 1;   // blocks that share the K of one tile
// -----------------------------------------------------------------------------

constexpr int SCALE_BLOCK = 128, THREADS = 32 * WARPS;
constexpr int WM = BLOCK_M / 2, WN = BLOCK_N / (WARPS / 2);    // warp tile
constexpr int MT = WM / 16, NT = WN / 8;                       // mma tiles per warp
constexpr int RAW_CHUNKS = BLOCK_K / 16, CHUNKS = BLOCK_K / 8; // 16-byte chunks per tile row, raw and fp16
constexpr int PROMOTE = SCALE_BLOCK / BLOCK_K;                 // steps that share their scales
constexpr int TILE = (BLOCK_M + BLOCK_N) * BLOCK_K;            // values per stage, A's rows first

static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp tile must be a multiple of 16 x 16");
static_assert(MT * NT * 4 <= 64, "more than 64 accumulators, which are kept twice, spill");
static_assert(BLOCK_K == 32 || BLOCK_K == 64 || BLOCK_K == 128, "BLOCK_K must be 32, 64 or 128: it divides a scale block");
static_assert(SCALE_BLOCK % BLOCK_N == 0, "BLOCK_N must divide 128: a block has one scale of B at a time");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");
static_assert(SPLITS >= 1 && SPLITS <= 16, "SPLITS must be 1 to 16");

// Offset in halves of (row, chunk); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzle(int row, int chunk) {
  return row * BLOCK_K + ((chunk ^ (CHUNKS >= 8 ? row % 8 : row * CHUNKS / 8 % CHUNKS)) * 8);
}
__device__ __forceinline__ unsigned smem_addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool live) { // zeros unless live
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_addr(dst)), "l"(src), "r"(live ? 16 : 0) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_addr(p)) : "memory");
}
__device__ __forceinline__ void mma_16816(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Bytes 1 and 3 of a word as halves, 2^8 too small; bytes 0 and 2 after a shift by 8.
__device__ __forceinline__ unsigned odd_bytes(unsigned word) { return (word & 0x80008000u) | (word >> 1 & 0x3f803f80u); }
__device__ __forceinline__ uint4 decode8(unsigned a, unsigned b) {
  return make_uint4(odd_bytes(a << 8), odd_bytes(a), odd_bytes(b << 8), odd_bytes(b));
}

extern "C" __global__ void __launch_bounds__(THREADS)
fp8_gemm(const unsigned char* __restrict__ A, const float* __restrict__ sa, const unsigned char* __restrict__ B,
         const float* __restrict__ sb, __half* __restrict__ C, float* __restrict__ partial, int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char smem[];
  __half* tile = reinterpret_cast<__half*>(smem);          // [BLOCK_M + BLOCK_N][BLOCK_K], swizzled
  uint4* raw = reinterpret_cast<uint4*>(smem + 2 * TILE); // [STAGES][BLOCK_M + BLOCK_N][BLOCK_K / 16]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % 2 * WM, warp_n = warp / 2 * WN;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int blocks = K / SCALE_BLOCK, chunk = (blocks + SPLITS - 1) / SPLITS * PROMOTE; // steps of a split
  const int first = blockIdx.z * chunk, last = min(first + chunk, K / BLOCK_K);
  float total[MT][NT][4] = {}, acc[MT][NT][4] = {}, scale[MT][2];
  auto fetch = [&](int step) { // raw bytes as they are; one group per step, empty past the last
    if (step < last)
#pragma unroll
      for (int i = threadIdx.x; i < TILE / 16; i += THREADS) {
        const int r = i / RAW_CHUNKS, row = r < BLOCK_M ? m0 + r : n0 + r - BLOCK_M;
        const bool live = row < (r < BLOCK_M ? M : N);
        const size_t at = (size_t)row * K + step * BLOCK_K + i % RAW_CHUNKS * 16;
        cp_async16(raw + (step - first) % STAGES * (TILE / 16) + i, (r < BLOCK_M ? A : B) + (live ? at : 0), live);
      }
    cp_async_commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) fetch(first + s);

  for (int step = first; step < last; ++step) {
    if (step % PROMOTE == 0)
#pragma unroll
      for (int i = 0; i < MT * 2; ++i) {
        const int m = min(m0 + warp_m + i * 8 + lane / 4, M - 1), block = step / PROMOTE;
        scale[i / 2][i % 2] = sa[(size_t)m * blocks + block] * sb[n0 / SCALE_BLOCK * blocks + block] * 0x1p16f;
      }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);

#pragma unroll
    for (int i = threadIdx.x; i < TILE / 16; i += THREADS) {
      const uint4 bytes = raw[(step - first) % STAGES * (TILE / 16) + i];
      const int r = i / RAW_CHUNKS, c = i % RAW_CHUNKS * 2;
      *reinterpret_cast<uint4*>(tile + swizzle(r, c)) = decode8(bytes.x, bytes.y);
      *reinterpret_cast<uint4*>(tile + swizzle(r, c + 1)) = decode8(bytes.z, bytes.w);
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
      unsigned a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) ldmatrix_x4(a[i], tile + swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < NT / 2; ++j)
        ldmatrix_x4(b[j], tile + swizzle(BLOCK_M + warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int t = 0; t < MT * NT; ++t)
        mma_16816(acc[t / NT][t % NT], a[t / NT], b[t % NT / 2][t % 2 * 2], b[t % NT / 2][t % 2 * 2 + 1]);
    }
    if (step % PROMOTE == PROMOTE - 1)
#pragma unroll
      for (int t = 0; t < MT * NT * 4; ++t) {
        const int i = t / 4 / NT, j = t / 4 % NT, e = t % 4;
        total[i][j][e] += acc[i][j][e] * scale[i][e / 2];
        acc[i][j][e] = 0.0f;
      }
  }
#pragma unroll
  for (int t = 0; t < MT * NT * 2; ++t) {
    const int i = t / 2 / NT, j = t / 2 % NT, h = t % 2;
    const int m = m0 + warp_m + i * 16 + h * 8 + lane / 4, n = n0 + warp_n + j * 8 + lane % 4 * 2;
    const float2 pair = make_float2(total[i][j][h * 2], total[i][j][h * 2 + 1]);
    if (m >= M || n >= N) continue;
    if (SPLITS > 1)
      *reinterpret_cast<float2*>(partial + ((size_t)blockIdx.z * M + m) * N + n) = pair;
    else
      *reinterpret_cast<__half2*>(C + (size_t)m * N + n) = __float22half2_rn(pair);
  }
}

extern "C" __global__ void __launch_bounds__(256)
reduce(const float* __restrict__ partial, __half* __restrict__ C, int M, int N) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= M * N) return;
  float sum = 0.0f;
  for (int s = 0; s < SPLITS; ++s) sum += partial[(size_t)s * M * N + i];
  C[i] = __float2half(sum);
}
