// fused_qkv_rope/wgmma: qkv = x @ w^T, rotary embedding on the q and k heads, then q, k and v apart; for Hopper.
//
// Warp-specialised: one thread issues TMA loads, zeros past the edges, into a STAGES-deep ring of 128-byte-swizzled
// tiles; CONSUMERS warpgroups multiply them with wgmma, 64 rows by whole heads each. Rows of w: q, k, then v heads.
// Element d of a head and its partner d + D / 2 are sums of one thread: it rotates them; cosine, sine fp32 [M, D / 2].
// Gains over epilogue: full tensor rate, copies that cost no instructions.
//
// Launch: grid = (ceil((H + 2 KV) / HEADS), ceil(M / BLOCK_M)), block = 128 * (CONSUMERS + 1), with
//         BLOCK_M = 64 * CONSUMERS; dynamic shared memory = STAGES * (BLOCK_M + HEADS * 128) * 128 + 1024 bytes.
//         map_x, map_w: 2-D fp16 tensor maps with box 64 x BLOCK_M and 64 x HEADS * 128, 128-byte swizzle.
// Needs:  sm_90a, D == 128, K % 8 == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int HEAD_DIM = 128; // elements of a head, D
// ---- tuning parameters ------------------------------------------------------
constexpr int CONSUMERS = 1; // consumer warpgroups, 64 rows each
constexpr int HEADS = 1;     // heads per block
constexpr int STAGES = 4;    // TMA stages in flight
// -----------------------------------------------------------------------------

constexpr int BLOCK_M = 64 * CONSUMERS, BLOCK_N = HEADS * HEAD_DIM, BLOCK_K = 64; // BLOCK_K halves are one swizzle row
constexpr int THREADS = 128 * (CONSUMERS + 1), HALF = HEAD_DIM / 2, STAGE_BYTES = (BLOCK_M + BLOCK_N) * BLOCK_K * 2;
constexpr int PRODUCER_REGS = 40, CONSUMER_REGS = 232; // after setmaxnreg; 40 + 2 * 232 is what 384 threads share

static_assert(HEAD_DIM == 128, "HEAD_DIM must be 128: one wgmma covers a head");
static_assert(CONSUMERS == 1 || CONSUMERS == 2, "CONSUMERS must be 1 or 2: more would need fewer than 232 registers each");
static_assert(HEADS == 1 || HEADS == 2, "HEADS must be 1 or 2: 64 accumulators a head, a TMA box has at most 256 rows");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");
static_assert(STAGES * STAGE_BYTES + 1024 <= 232448, "stages exceed 227 KB of shared memory");

using u64 = unsigned long long;
struct __align__(64) TensorMap { u64 opaque[16]; }; // a CUtensorMap

__device__ __forceinline__ unsigned smem_addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbar_init(u64* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void mbar_expect_tx(u64* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(u64* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_addr(bar)) : "memory");
}
__device__ __forceinline__ void mbar_wait(u64* bar, int parity) {
  for (int done = 0; !done;)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(smem_addr(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma_load_2d(void* dst, const TensorMap* map, u64* bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(smem_addr(dst)), "l"(map), "r"(smem_addr(bar)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait_all() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
template <int N> __device__ __forceinline__ void regs_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void regs_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// K-major tile, 128-byte swizzle: eight-row groups are 1024 bytes apart.
__device__ __forceinline__ u64 smem_desc(const void* p) {
  return (u64)((smem_addr(p) & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], u64 desc_a, u64 desc_b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
               : "l"(desc_a), "l"(desc_b), "r"(accumulate));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
qkv_rope(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w, const float* __restrict__ cosine,
         const float* __restrict__ sine, __half* __restrict__ q, __half* __restrict__ k, __half* __restrict__ v,
         int M, int H, int KV, int K) {
  extern __shared__ unsigned char raw[];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  unsigned char* tiles = raw + (1024 - smem_addr(raw) % 1024) % 1024;
  const int group = threadIdx.x / 128, m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N, steps = (K + BLOCK_K - 1) / BLOCK_K;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbar_init(&full[s], 1), mbar_init(&empty[s], CONSUMERS);
    mbar_init_fence();
  }
  __syncthreads();
  if (group == CONSUMERS) { // producer warpgroup
    regs_shrink<PRODUCER_REGS>();
    if (threadIdx.x != CONSUMERS * 128) return;
    for (int step = 0; step < steps; ++step) {
      const int s = step % STAGES, round = step / STAGES;
      if (round > 0) mbar_wait(&empty[s], (round - 1) & 1);
      unsigned char* a = tiles + s * STAGE_BYTES;
      mbar_expect_tx(&full[s], STAGE_BYTES);
      tma_load_2d(a, &map_x, &full[s], step * BLOCK_K, m0);
      tma_load_2d(a + BLOCK_M * BLOCK_K * 2, &map_w, &full[s], step * BLOCK_K, n0);
    }
    return;
  }

  regs_grow<CONSUMER_REGS>();
  float acc[HEADS][64];
  for (int step = 0; step < steps; ++step) {
    const int s = step % STAGES;
    mbar_wait(&full[s], step / STAGES & 1);
    const unsigned char* a = tiles + s * STAGE_BYTES + group * 64 * BLOCK_K * 2;
    const unsigned char* b = tiles + s * STAGE_BYTES + BLOCK_M * BLOCK_K * 2;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk)
#pragma unroll
      for (int h = 0; h < HEADS; ++h)
        wgmma_m64n128k16(acc[h], smem_desc(a + kk * 32), smem_desc(b + h * HEAD_DIM * BLOCK_K * 2 + kk * 32), step + kk > 0);
    wgmma_commit();
    wgmma_wait_all();
    if (threadIdx.x % 128 == 0) mbar_arrive(&empty[s]);
  }

  const int lane = threadIdx.x % 32, row = m0 + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = blockIdx.x * HEADS + h;
    if (head >= H + 2 * KV) break;
    const bool rotate = head < H + KV;
    const int heads = head < H ? H : KV, first = head < H ? 0 : rotate ? H : H + KV; // of the tensor this head goes to
    __half* dst = (head < H ? q : rotate ? k : v) + (head - first) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < HALF / 4; ++i) { // a lane holds two columns of two rows, eight apart, in either half
      const int m = row + i % 2 * 8, d = i / 2 * 8 + lane % 4 * 2;
      if (m >= M) continue;
      const float2 lo = make_float2(acc[h][i * 2], acc[h][i * 2 + 1]);
      const float2 hi = make_float2(acc[h][HALF / 2 + i * 2], acc[h][HALF / 2 + i * 2 + 1]);
      const float2 c = rotate ? *reinterpret_cast<const float2*>(cosine + m * HALF + d) : make_float2(1.0f, 1.0f);
      const float2 s = rotate ? *reinterpret_cast<const float2*>(sine + m * HALF + d) : make_float2(0.0f, 0.0f);
      __half* out = dst + (size_t)m * heads * HEAD_DIM + d;
      *reinterpret_cast<__half2*>(out) = __floats2half2_rn(lo.x * c.x - hi.x * s.x, lo.y * c.y - hi.y * s.y);
      *reinterpret_cast<__half2*>(out + HALF) = __floats2half2_rn(hi.x * c.x + lo.x * s.x, hi.y * c.y + lo.y * s.y);
    }
  }
}
