// fused_qkv_rope/gemm_rope: qkv = x @ w^T, rotary embedding on the q and k heads, then q, k and v apart.
//
// The product runs on tensor cores: a STAGES-deep cp.async pipeline feeds XOR-swizzled tiles, warps
// (2 along M, WARPS / 2 along N) read them with ldmatrix and multiply with mma.sync m16n8k16. One
// second kernel reads the scratch matrix in 16-byte packets, eight elements and their partners D / 2
// away per thread, rotates q and k heads, and stores q, k and v.
// Gains over three_launches: tensor cores fed asynchronously, one pass over qkv instead of two.
//
// qkv is [M, (H + 2 KV) D]: q heads, then k heads, then v heads; cosine and sine are fp32 [M, D / 2].
//
// Launch: qkv_gemm: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = 32 * WARPS,
//         dynamic shared memory = STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 bytes;
//         rope_split: grid = ceil(M N / 16 / 256), block = 256, with N = (H + 2 KV) D.
// Needs:  sm_80 or newer, K % 8 == 0, D % 16 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of the product per block
constexpr int BLOCK_N = 64; // columns of the product per block
constexpr int BLOCK_K = 32; // depth of a tile
constexpr int STAGES = 2;   // tiles in flight or in use
constexpr int WARPS = 4;    // warps per block, 2 along M
// -----------------------------------------------------------------------------

constexpr int THREADS = 32 * WARPS;
constexpr int WM = BLOCK_M / 2, WN = BLOCK_N / (WARPS / 2); // warp tile
constexpr int MT = WM / 16, NT = WN / 8;                    // mma tiles per warp
constexpr int CHUNKS = BLOCK_K / 8;                         // 16-byte chunks per tile row
constexpr int ROPE_THREADS = 256;

static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp tile must be a multiple of 16 x 16");
static_assert(MT * NT * 4 <= 128, "more than 128 accumulators per thread spill");
static_assert(BLOCK_K == 32 || BLOCK_K == 64, "BLOCK_K must be 32 or 64: the swizzle spans 128 bytes");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");

struct __align__(16) Half8 { __half2 h[4]; };

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
qkv_gemm(const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ qkv, int M, int N, int K) {
  extern __shared__ __align__(128) __half smem[]; // [STAGES][BLOCK_M + BLOCK_N][BLOCK_K]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % 2 * WM, warp_n = warp / 2 * WN;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int steps = (K + BLOCK_K - 1) / BLOCK_K;
  float acc[MT][NT][4] = {};

  const auto fetch = [&](int step) {
    __half* stage = smem + step % STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K;
    if (step < steps) load_tile<BLOCK_M>(stage, x, m0, step * BLOCK_K, M, K);
    if (step < steps) load_tile<BLOCK_N>(stage + BLOCK_M * BLOCK_K, w, n0, step * BLOCK_K, N, K);
    cp_async_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);

  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);
    const __half* x_now = smem + step % STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K;
    const __half* w_now = x_now + BLOCK_M * BLOCK_K;
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
      unsigned a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) ldmatrix_x4(a[i], x_now + swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < NT / 2; ++j)
        ldmatrix_x4(b[j], w_now + swizzle(warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) mma_16816(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
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
          *reinterpret_cast<__half2*>(qkv + (size_t)m * N + n) = __floats2half2_rn(acc[i][j][h * 2], acc[i][j][h * 2 + 1]);
      }
}

extern "C" __global__ void __launch_bounds__(ROPE_THREADS)
rope_split(const __half* __restrict__ qkv, const float* __restrict__ cosine, const float* __restrict__ sine,
           __half* __restrict__ q, __half* __restrict__ k, __half* __restrict__ v, int M, int H, int KV, int D) {
  const int i = blockIdx.x * ROPE_THREADS + threadIdx.x, packets = D / 16, heads = H + 2 * KV;
  const int d = i % packets * 8, head = i / packets % heads, m = i / packets / heads;
  if (m >= M) return;
  const __half* src = qkv + ((size_t)m * heads + head) * D + d;
  Half8 lo = *reinterpret_cast<const Half8*>(src), hi = *reinterpret_cast<const Half8*>(src + D / 2);

  if (head < H + KV) {
    const float2* c = reinterpret_cast<const float2*>(cosine + m * (D / 2) + d);
    const float2* s = reinterpret_cast<const float2*>(sine + m * (D / 2) + d);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 a = __half22float2(lo.h[e]), b = __half22float2(hi.h[e]);
      lo.h[e] = __floats2half2_rn(a.x * c[e].x - b.x * s[e].x, a.y * c[e].y - b.y * s[e].y);
      hi.h[e] = __floats2half2_rn(b.x * c[e].x + a.x * s[e].x, b.y * c[e].y + a.y * s[e].y);
    }
  }

  __half* dst = head < H        ? q + ((size_t)m * H + head) * D
                : head < H + KV ? k + ((size_t)m * KV + head - H) * D
                                : v + ((size_t)m * KV + head - H - KV) * D;
  *reinterpret_cast<Half8*>(dst + d) = lo;
  *reinterpret_cast<Half8*>(dst + D / 2 + d) = hi;
}
