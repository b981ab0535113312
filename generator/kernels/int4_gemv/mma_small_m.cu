// int4_gemv/mma_small_m: y[m, n] = sum_k dequant(w[n, k]) * x[m, k], int4 weights, fp16 activations, fp32 sums.
//
// For a few rows, after Marlin: a block walks all of K, a STAGES-deep cp.async ring keeps packed weights of BLOCK_N columns and
// the activations of BLOCK_M rows in flight. mma.sync m16n8k16 multiplies 16 columns, decoded in registers by lop3, with eight
// rows; rows past M are zeros. Which k an mma lane holds is free as long as weights and activations agree: lane t of a quad
// takes 32 neighbours of every 128, one 16-byte load of weights, and the chunks of x are transposed on their way to shared
// memory so that its four are read without bank conflicts. Sums of 128 of k are scaled by their group.
// Gains over split_k: x comes from shared memory once for all columns of a warp, loads need no registers, no partial sums.
//
// A word holds eight nibbles: k = 2i at bit 4i, k = 2i + 1 at bit 4i + 16; a nibble is weight + 8.
//
// Launch: grid = (ceil(M / BLOCK_M), ceil(N / BLOCK_N)), block = 32 * WARPS,
//         dynamic shared memory = STAGES * BLOCK_K / 128 * (64 * BLOCK_N + 320 * BLOCK_M) bytes.
// Needs:  sm_80 or newer, K % 128 == 0, K % GROUP == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int GROUP = 128; // weights per scale
// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 8;   // rows of x per block
constexpr int BLOCK_N = 128; // output columns (rows of w) per block
constexpr int BLOCK_K = 128; // weights of a column per stage
constexpr int STAGES = 4;    // stages in flight or in use
constexpr int WARPS = 4;     // warps per block
// -----------------------------------------------------------------------------

constexpr int STEP_K = 128, STEPS = BLOCK_K / STEP_K; // weights of a column that a quad takes at once: 32 a lane
constexpr int THREADS = 32 * WARPS;
constexpr int MT = BLOCK_M / 8, NT = BLOCK_N / (16 * WARPS); // mma tiles per warp
constexpr int W_CHUNKS = 4, X_CHUNKS = 16;                   // 16-byte chunks of a step: of a column, of a row of x
constexpr int X_PITCH = X_CHUNKS + 4;                        // two rows of x lie in different halves of the banks
constexpr int W_STAGE = STEPS * BLOCK_N * W_CHUNKS, STAGE = W_STAGE + STEPS * BLOCK_M * X_PITCH; // chunks, weights first

static_assert(BLOCK_M == 8 || BLOCK_M == 16, "BLOCK_M must be 8 or 16: mma takes eight rows");
static_assert(NT >= 1 && BLOCK_N % (16 * WARPS) == 0, "a warp takes a multiple of 16 columns");
static_assert(STEPS >= 1 && BLOCK_K % STEP_K == 0, "BLOCK_K must be a multiple of 128");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");
static_assert(GROUP % STEP_K == 0, "GROUP must be a multiple of the 128 weights of a step");

__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool live) {
  const int bytes = live ? 16 : 0; // 0: the chunk is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"((unsigned)__cvta_generic_to_shared(dst)), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// (bits & 0x000f000f) | 0x64006400, less 1032: two weights as half2.
__device__ __forceinline__ unsigned dequant(unsigned bits) {
  unsigned raw;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(raw) : "r"(bits), "n"(0x000f000f), "n"(0x64006400));
  const __half2 pair = __hsub2(*reinterpret_cast<const __half2*>(&raw), __float2half2_rn(1032.0f));
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ void mma_16816(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Eight weights of the upper and lower column times eight activations a lane: two mma per eight rows.
__device__ __forceinline__ void multiply(float (&c)[MT][4], unsigned upper, unsigned lower, const uint4 (&x)[MT]) {
  const unsigned first[4] = {dequant(upper), dequant(lower), dequant(upper >> 4), dequant(lower >> 4)};
  const unsigned second[4] = {dequant(upper >> 8), dequant(lower >> 8), dequant(upper >> 12), dequant(lower >> 12)};
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    mma_16816(c[m], first, x[m].x, x[m].y);
    mma_16816(c[m], second, x[m].z, x[m].w);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
int4_gemv(const unsigned* __restrict__ w, const __half* __restrict__ scale, const __half* __restrict__ x,
          __half* __restrict__ y, int M, int N, int K) {
  extern __shared__ uint4 smem[]; // [STAGES]: weights [STEPS][BLOCK_N][W_CHUNKS], x [STEPS][BLOCK_M][X_PITCH]
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp_n = threadIdx.x / 32 * NT * 16;
  const int m0 = blockIdx.x * BLOCK_M, n0 = blockIdx.y * BLOCK_N;
  const int groups = K / GROUP, blocks = (K + BLOCK_K - 1) / BLOCK_K;
  float acc[NT][MT][4] = {};

  auto fetch = [&](int block) { // one group per block of k, empty past the last; columns past N repeat the last one
    uint4* to = smem + block % STAGES * STAGE;
    if (block < blocks) {
      for (int i = threadIdx.x; i < W_STAGE; i += THREADS) {
        const int n = min(n0 + i / W_CHUNKS % BLOCK_N, N - 1), k = block * BLOCK_K + i / (BLOCK_N * W_CHUNKS) * STEP_K;
        cp_async16(to + i, w + (k < K ? ((size_t)n * K + k) / 8 + i % W_CHUNKS * 4 : 0), k < K);
      }
      for (int i = threadIdx.x; i < STEPS * BLOCK_M * X_CHUNKS; i += THREADS) {
        const int c = i % X_CHUNKS, row = i / X_CHUNKS, m = m0 + row % BLOCK_M, k = block * BLOCK_K + row / BLOCK_M * STEP_K;
        const bool live = m < M && k < K;
        const size_t at = live ? (size_t)m * K + k + c * 8 : 0;
        cp_async16(to + W_STAGE + row * X_PITCH + c % 4 * 4 + c / 4, x + at, live);
      }
    }
    cp_async_commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);

  for (int block = 0; block < blocks; ++block) {
    float s[STEPS][NT * 2];
#pragma unroll
    for (int i = 0; i < STEPS * NT * 2; ++i) {
      const int n = min(n0 + warp_n + i % (NT * 2) * 8 + g, N - 1), k = block * BLOCK_K + i / (NT * 2) * STEP_K;
      s[i / (NT * 2)][i % (NT * 2)] = __half2float(scale[(size_t)n * groups + min(k / GROUP, groups - 1)]);
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fetch(block + STAGES - 1);

    const uint4 *weights = smem + block % STAGES * STAGE, *rows = weights + W_STAGE;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      uint4 xv[4][MT];
#pragma unroll
      for (int i = 0; i < 4 * MT; ++i) xv[i % 4][i / 4] = rows[(step * BLOCK_M + i / 4 * 8 + g) * X_PITCH + i % 4 * 4 + t];
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const uint4 u = weights[(step * BLOCK_N + warp_n + j * 16 + g) * W_CHUNKS + t];
        const uint4 l = weights[(step * BLOCK_N + warp_n + j * 16 + g + 8) * W_CHUNKS + t];
        float c[MT][4] = {};
        multiply(c, u.x, l.x, xv[0]);
        multiply(c, u.y, l.y, xv[1]);
        multiply(c, u.z, l.z, xv[2]);
        multiply(c, u.w, l.w, xv[3]);
#pragma unroll
        for (int e = 0; e < MT * 4; ++e) acc[j][e / 4][e % 4] += c[e / 4][e % 4] * s[step][j * 2 + e % 4 / 2];
      }
    }
  }

#pragma unroll
  for (int i = 0; i < NT * MT * 4; ++i) {
    const int n = n0 + warp_n + i / (MT * 4) * 16 + i % 4 / 2 * 8 + g, m = m0 + i / 4 % MT * 8 + t * 2 + i % 2;
    if (m < M && n < N) y[(size_t)m * N + n] = __float2half(acc[i / (MT * 4)][i / 4 % MT][i % 4]);
  }
}
