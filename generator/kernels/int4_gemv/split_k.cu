// int4_gemv/split_k: y[m, n] = sum_k dequant(w[n, k]) * x[m, k], int4 weights, fp16 activations, fp32 sums.
//
// A warp owns 16 columns and multiplies with mma.sync m16n8k16: A is the dequantised weights, B the
// activations, rows past M zero. Which k an mma lane holds is free as long as A and B agree, so a
// lane takes 32 neighbouring weights of its column (one 16-byte load) and the same 32 activations,
// and eight mma cover 128 of K: one scale. That needs few blocks, so K is split over SPLITS of them;
// each writes fp32 partials, and a second kernel adds them up.
// Gains over lop3: a weight is unpacked once and multiplied by all rows on tensor cores.
//
// A word holds eight nibbles: k = 2i at bit 4i, k = 2i + 1 at bit 4i + 16; a nibble is weight + 8.
//
// Launch: int4_partial: grid = (ceil(N / (16 * WARPS)), SPLITS), block = 32 * WARPS;
//         int4_reduce: grid = ceil(M * N / 256), block = 256. partial is fp32 [SPLITS, M, N].
// Needs:  sm_80 or newer, M <= 8, K % GROUP == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int GROUP = 128; // weights per scale
// ---- tuning parameters ------------------------------------------------------
constexpr int WARPS = 4;   // warps per block, 16 output columns each
constexpr int SPLITS = 4;  // blocks that share the K of one column tile
constexpr int UNROLL = 1;  // unroll of the loop over K
// -----------------------------------------------------------------------------

constexpr int STEP_K = 128; // weights of a column a warp takes per step: 32 a lane, 4 lanes

static_assert(WARPS >= 1 && WARPS <= 32, "a block has 1 to 32 warps");
static_assert(SPLITS >= 1 && SPLITS <= 32, "SPLITS must be 1 to 32");
static_assert((UNROLL & (UNROLL - 1)) == 0, "UNROLL must be a power of two");
static_assert(GROUP % STEP_K == 0, "GROUP must be a multiple of the 128 weights of a step");

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

// Eight weights of the upper and lower column times eight activations a lane: two mma.
__device__ __forceinline__ void multiply(float (&c)[4], unsigned upper, unsigned lower, const uint4& x) {
  const unsigned first[4] = {dequant(upper), dequant(lower), dequant(upper >> 4), dequant(lower >> 4)};
  const unsigned second[4] = {dequant(upper >> 8), dequant(lower >> 8), dequant(upper >> 12), dequant(lower >> 12)};
  mma_16816(c, first, x.x, x.y);
  mma_16816(c, second, x.z, x.w);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
int4_partial(const unsigned* __restrict__ w, const __half* __restrict__ scale, const __half* __restrict__ x,
             float* __restrict__ partial, int M, int N, int K) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int n0 = (blockIdx.x * WARPS + warp) * 16;
  const size_t upper = min(n0 + g, N - 1), lower = min(n0 + g + 8, N - 1); // past N: computed, not stored
  const int chunk = (K / STEP_K + SPLITS - 1) / SPLITS * STEP_K;
  const int begin = blockIdx.y * chunk, end = min(begin + chunk, K);
  float acc[4] = {};

#pragma unroll UNROLL
  for (int k0 = begin; k0 < end; k0 += STEP_K) {
    const int k = k0 + t * 32;
    const uint4 u = *reinterpret_cast<const uint4*>(w + (upper * K + k) / 8);
    const uint4 l = *reinterpret_cast<const uint4*>(w + (lower * K + k) / 8);
    uint4 xv[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      xv[i] = g < M ? *reinterpret_cast<const uint4*>(x + (size_t)g * K + k + i * 8) : make_uint4(0, 0, 0, 0);

    float c[4] = {};
    multiply(c, u.x, l.x, xv[0]);
    multiply(c, u.y, l.y, xv[1]);
    multiply(c, u.z, l.z, xv[2]);
    multiply(c, u.w, l.w, xv[3]);

    const float su = __half2float(scale[upper * (K / GROUP) + k0 / GROUP]);
    const float sl = __half2float(scale[lower * (K / GROUP) + k0 / GROUP]);
    acc[0] += su * c[0];
    acc[1] += su * c[1];
    acc[2] += sl * c[2];
    acc[3] += sl * c[3];
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = n0 + g + i / 2 * 8, m = t * 2 + i % 2;
    if (n < N && m < M) partial[((size_t)blockIdx.y * M + m) * N + n] = acc[i];
  }
}

extern "C" __global__ void __launch_bounds__(256)
int4_reduce(const float* __restrict__ partial, __half* __restrict__ y, int M, int N) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= M * N) return;
  float sum = 0.0f;
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) sum += partial[(size_t)s * M * N + i];
  y[i] = __float2half(sum);
}
