// fused_qkv_rope/epilogue: qkv = x @ w^T, rotary embedding on the q and k heads, then q, k and v apart.
//
// One kernel. A block's tile covers HEADS whole heads, and a warp owns the same columns of the lower
// and the upper half of its head, so element d and its partner d + D / 2 are accumulators of one
// thread: it rotates them in registers and stores straight into q, k or v. The product is as in
// gemm_rope: STAGES-deep cp.async pipeline, swizzled tiles, ldmatrix, mma.sync m16n8k16.
// Gains over gemm_rope: no scratch matrix, one launch, rotation before rounding to fp16.
//
// w rows: q heads, then k heads, then v heads. Rotation pairs element d of a head with d + D / 2;
// cosine and sine are fp32 [M, D / 2].
//
// Launch: grid = (ceil((H + 2 KV) / HEADS), ceil(M / BLOCK_M)), block = 32 * WARPS,
//         dynamic shared memory = STAGES * (BLOCK_M + HEADS * D) * BLOCK_K * 2 bytes.
// Needs:  sm_80 or newer, K % 8 == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int HEAD_DIM = 128; // elements of a head, D
// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of the product per block
constexpr int HEADS = 1;    // heads per block
constexpr int BLOCK_K = 32; // depth of a tile
constexpr int STAGES = 3;   // tiles in flight or in use
constexpr int WARPS = 4;    // warps per block, 2 along M
// -----------------------------------------------------------------------------

constexpr int THREADS = 32 * WARPS, BLOCK_N = HEADS * HEAD_DIM;
constexpr int WM = BLOCK_M / 2, WN = BLOCK_N / (WARPS / 2); // warp tile
constexpr int MT = WM / 16, NT = WN / 8;                    // mma tiles per warp
constexpr int HALF = HEAD_DIM / 2;
constexpr int HEAD_WARPS = HEAD_DIM / WN; // warps along N that share a head
constexpr int CHUNKS = BLOCK_K / 8;       // 16-byte chunks per tile row

static_assert(WM % 16 == 0 && WN % 32 == 0, "a warp tile must be a multiple of 16 x 32: 16 columns of each half");
static_assert(HEAD_DIM % WN == 0, "a warp must not cross heads: HEADS is too great for WARPS");
static_assert(MT * NT * 4 <= 128, "more than 128 accumulators per thread spill");
static_assert(BLOCK_K == 32 || BLOCK_K == 64, "BLOCK_K must be 32 or 64: the swizzle spans 128 bytes");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");

// Offset in halves of (row, chunk); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzle(int row, int chunk) {
  return row * BLOCK_K + ((chunk ^ ((row * CHUNKS / 8) % CHUNKS)) * 8);
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
__device__ __forceinline__ void mma_16816(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies one TILE_ROWS x BLOCK_K tile of a row-major [limit, K] matrix into shared memory.
template <int TILE_ROWS>
__device__ __forceinline__ void load_tile(__half* tile, const __half* src, int row0, int k0, int limit, int K) {
#pragma unroll
  for (int i = threadIdx.x; i < TILE_ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    const bool live = row0 + r < limit && k0 + c * 8 < K;
    cp_async16(tile + swizzle(r, c), live ? src + (size_t)(row0 + r) * K + k0 + c * 8 : src, live);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
qkv_rope(const __half* __restrict__ x, const __half* __restrict__ w, const float* __restrict__ cosine, const float* __restrict__ sine,
         __half* __restrict__ q, __half* __restrict__ k, __half* __restrict__ v, int M, int H, int KV, int K) {
  extern __shared__ __align__(128) __half smem[];
  __half* tile_x = smem;                              // [STAGES][BLOCK_M][BLOCK_K]
  __half* tile_w = smem + STAGES * BLOCK_M * BLOCK_K; // [STAGES][BLOCK_N][BLOCK_K]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % 2 * WM, warp_head = warp / 2 / HEAD_WARPS, warp_d = warp / 2 % HEAD_WARPS * (WN / 2);
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N, N = (H + 2 * KV) * HEAD_DIM;
  const int steps = (K + BLOCK_K - 1) / BLOCK_K;
  float acc[MT][NT][4] = {}; // n tiles below NT / 2 lie in the lower half of the head

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      load_tile<BLOCK_M>(tile_x + s * BLOCK_M * BLOCK_K, x, m0, s * BLOCK_K, M, K);
      load_tile<BLOCK_N>(tile_w + s * BLOCK_N * BLOCK_K, w, n0, s * BLOCK_K, N, K);
    }
    cp_async_commit();
  }

  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int next = step + STAGES - 1;
    if (next < steps) {
      load_tile<BLOCK_M>(tile_x + next % STAGES * BLOCK_M * BLOCK_K, x, m0, next * BLOCK_K, M, K);
      load_tile<BLOCK_N>(tile_w + next % STAGES * BLOCK_N * BLOCK_K, w, n0, next * BLOCK_K, N, K);
    }
    cp_async_commit();

    const __half* x_now = tile_x + step % STAGES * BLOCK_M * BLOCK_K;
    const __half* w_now = tile_w + step % STAGES * BLOCK_N * BLOCK_K;
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
      unsigned a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) ldmatrix_x4(a[i], x_now + swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < NT / 2; ++j) {
        const int col = warp_head * HEAD_DIM + j / (NT / 4) * HALF + warp_d + j % (NT / 4) * 16;
        ldmatrix_x4(b[j], w_now + swizzle(col + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) mma_16816(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }

  const int head = blockIdx.x * HEADS + warp_head;
  if (head >= H + 2 * KV) return;
  const bool rotate = head < H + KV;
  const int heads = head < H ? H : KV, first = head < H ? 0 : rotate ? H : H + KV; // of the tensor this head goes to
  __half* dst = (head < H ? q : rotate ? k : v) + (head - first) * HEAD_DIM;
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = m0 + warp_m + i * 16 + h * 8 + lane / 4;
      if (m >= M) continue;
      __half* row = dst + (size_t)m * heads * HEAD_DIM;
#pragma unroll
      for (int j = 0; j < NT / 2; ++j) {
        const int d = warp_d + j * 8 + lane % 4 * 2;
        const float2 lo = make_float2(acc[i][j][h * 2], acc[i][j][h * 2 + 1]);
        const float2 hi = make_float2(acc[i][j + NT / 2][h * 2], acc[i][j + NT / 2][h * 2 + 1]);
        const float2 one = make_float2(1.0f, 1.0f), zero = make_float2(0.0f, 0.0f);
        const float2 c = rotate ? *reinterpret_cast<const float2*>(cosine + m * HALF + d) : one;
        const float2 s = rotate ? *reinterpret_cast<const float2*>(sine + m * HALF + d) : zero;
        *reinterpret_cast<__half2*>(row + d) = __floats2half2_rn(lo.x * c.x - hi.x * s.x, lo.y * c.y - hi.y * s.y);
        *reinterpret_cast<__half2*>(row + HALF + d) = __floats2half2_rn(hi.x * c.x + lo.x * s.x, hi.y * c.y + lo.y * s.y);
      }
    }
}
