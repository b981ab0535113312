// gemm_fp16/wgmma_tma: C[M, N] = A[M, K] @ B[N, K]^T on Hopper, fp16 in and out, fp32 sums.
//
// Warp-specialised: one producer thread issues TMA loads into a STAGES-deep ring of 128-byte-swizzled
// tiles, CONSUMERS warpgroups multiply them with wgmma straight from shared memory, one group of
// products always in flight. A stage has a full barrier (its bytes have landed) and an empty one
// (every consumer is done with it). TMA zero-fills past the edges of A and B, so only the store needs
// a bounds check. Blocks walk C in bands of SWIZZLE tile rows.
// Gains over mma_cp_async: the full tensor rate, no address arithmetic, no ldmatrix, and registers
// that hold nothing but sums.
//
// Launch: grid = ceil(M / (64 * CONSUMERS)) * ceil(N / BLOCK_N), block = 128 * (CONSUMERS + 1),
//         dynamic shared memory = STAGES * (64 * CONSUMERS + BLOCK_N) * 128 + 1024 bytes.
//         map_a, map_b: fp16 tensor maps, box 64 x (64 * CONSUMERS) and 64 x BLOCK_N, 128-byte swizzle.
// Needs:  sm_90a, K % 8 == 0, N % 2 == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int CONSUMERS = 2; // consumer warpgroups, 64 rows of C each
constexpr int BLOCK_N = 128; // columns of C per block
constexpr int STAGES = 4;    // TMA stages in shared memory
constexpr int SWIZZLE = 8;   // tile rows of C in a band
// -----------------------------------------------------------------------------

constexpr int BLOCK_M = 64 * CONSUMERS, BLOCK_K = 64; // 64 halves are one 128-byte swizzle row
constexpr int THREADS = 128 * (CONSUMERS + 1), MIN_BLOCKS = CONSUMERS == 1 ? 2 : 1;
constexpr int STAGE_BYTES = (BLOCK_M + BLOCK_N) * BLOCK_K * 2;
// setmaxnreg moves registers from the producer to the consumers; the sum is what the block was launched with.
constexpr int PRODUCER_REGS = 24, CONSUMER_REGS = CONSUMERS == 1 ? 232 : 240;

static_assert(CONSUMERS == 1 || CONSUMERS == 2, "CONSUMERS must be 1 or 2: a third leaves too few registers");
static_assert(BLOCK_N == 128 || BLOCK_N == 256, "BLOCK_N must be 128 or 256: whole wgmma tiles, one TMA box");
static_assert(STAGES >= 2, "a ring needs two stages");
static_assert(STAGES * STAGE_BYTES + 1024 <= 232448, "stages do not fit in shared memory");

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
  int done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(smem_addr(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma_load_2d(void* dst, const TensorMap* map, u64* bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(smem_addr(dst)), "l"(map), "r"(smem_addr(bar)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int N> __device__ __forceinline__ void regs_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void regs_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// K-major tile, 128-byte swizzle: eight-row groups are 1024 bytes apart.
__device__ __forceinline__ u64 smem_desc(const void* p) {
  return (u64)((smem_addr(p) & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], u64 desc_a, u64 desc_b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
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

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_fp16(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
          __half* __restrict__ C, int M, int N, int K) {
  extern __shared__ unsigned char raw[];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  unsigned char* tiles = raw + (1024 - smem_addr(raw) % 1024) % 1024;
  const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, band = SWIZZLE * ((N + BLOCK_N - 1) / BLOCK_N);
  const int first = blockIdx.x / band * SWIZZLE, height = min(SWIZZLE, tiles_m - first), place = blockIdx.x % band;
  const int m0 = (first + place % height) * BLOCK_M, n0 = place / height * BLOCK_N;
  const int group = threadIdx.x / 128, steps = (K + BLOCK_K - 1) / BLOCK_K;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbar_init(&full[s], 1), mbar_init(&empty[s], CONSUMERS);
    mbar_init_fence();
  }
  __syncthreads();

  if (group == CONSUMERS) { // producer warpgroup
    regs_shrink<PRODUCER_REGS>();
    if (threadIdx.x == CONSUMERS * 128) {
      for (int step = 0; step < steps; ++step) {
        const int s = step % STAGES, round = step / STAGES;
        if (round > 0) mbar_wait(&empty[s], (round - 1) & 1);
        unsigned char* a = tiles + s * STAGE_BYTES;
        mbar_expect_tx(&full[s], STAGE_BYTES);
        tma_load_2d(a, &map_a, &full[s], step * BLOCK_K, m0);
        tma_load_2d(a + BLOCK_M * BLOCK_K * 2, &map_b, &full[s], step * BLOCK_K, n0);
      }
    }
    return;
  }

  regs_grow<CONSUMER_REGS>();
  float acc[BLOCK_N / 128][64];
  for (int step = 0; step < steps; ++step) {
    const int s = step % STAGES;
    mbar_wait(&full[s], step / STAGES & 1);
    const unsigned char* a = tiles + s * STAGE_BYTES + group * 64 * BLOCK_K * 2;
    const unsigned char* b = tiles + s * STAGE_BYTES + BLOCK_M * BLOCK_K * 2;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 16; ++kk)
#pragma unroll
      for (int j = 0; j < BLOCK_N / 128; ++j)
        wgmma_m64n128k16(acc[j], smem_desc(a + kk * 32), smem_desc(b + j * 128 * BLOCK_K * 2 + kk * 32), step + kk > 0);
    wgmma_commit();
    wgmma_wait<1>(); // the products of the step before are complete: its stage may be refilled
    if (step > 0 && threadIdx.x % 128 == 0) mbar_arrive(&empty[(step - 1) % STAGES]);
  }
  wgmma_wait<0>();

  const int lane = threadIdx.x % 32, row = m0 + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < BLOCK_N / 8; ++j) {
    const int col = n0 + j * 8 + lane % 4 * 2;
    const float* d = &acc[j / 16][j % 16 * 4];
    if (col < N && row < M) *reinterpret_cast<__half2*>(C + (size_t)row * N + col) = __floats2half2_rn(d[0], d[1]);
    if (col < N && row + 8 < M)
      *reinterpret_cast<__half2*>(C + (size_t)(row + 8) * N + col) = __floats2half2_rn(d[2], d[3]);
  }
}
