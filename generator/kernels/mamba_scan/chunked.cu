// mamba_scan/chunked: Mamba-1 selective scan with softplus, skip and SiLU gate; fp16 in and out, fp32 state.
//
//   dt = softplus(delta + bias),  h[n] = exp(dt * A[n]) * h[n] + dt * u * B[n],
//   y = (sum over n of C[n] * h[n] + skip * u) * silu(z)
//
// A block owns CHANNELS channels of one sequence. cp.async brings chunks of CHUNK steps STAGES - 1
// ahead; a chunk is made ready by all threads at once (softplus, dt * u, B and C to fp32), scanned with
// the states of a channel spread over LANES lanes and carried in registers, then gated and stored whole.
// Gains over sequential: A stays in registers, 16-byte loads ahead of use, STATES / ITEMS times the
// threads, one ex2 per state and step.
//
// Launch: grid = (ceil(D / CHANNELS), B), block = THREADS, no dynamic shared memory.
// Needs:  sm_80 or newer, D % 8 == 0.
#include <cuda_fp16.h>

// ---- problem ----------------------------------------------------------------
constexpr int STATES = 16;   // state size N
// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block
constexpr int ITEMS = 4;     // states of one channel a thread keeps
constexpr int CHUNK = 32;    // steps per round
constexpr int STAGES = 2;    // chunks in shared memory, one of them being scanned
// -----------------------------------------------------------------------------

constexpr int LANES = STATES / ITEMS;
constexpr int CHANNELS = THREADS / LANES;
constexpr float LOG2E = 1.4426950408889634f;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, at most 1024");
static_assert(ITEMS % 4 == 0 && STATES % ITEMS == 0 && LANES <= 32, "ITEMS must be 4, 8 or 16: float4 loads of B and C");
static_assert(CHANNELS % 8 == 0 && CHUNK % LANES == 0, "CHUNK must be a multiple of STATES / ITEMS");
static_assert(STAGES >= 2, "STAGES must be at least 2: one chunk loads while one is scanned");

struct __align__(16) Stage {
  __half u[CHUNK][CHANNELS], delta[CHUNK][CHANNELS], z[CHUNK][CHANNELS]; // delta becomes y
  __half b[CHUNK][STATES], c[CHUNK][STATES];
};
struct __align__(16) Ready {
  float2 drive[CHUNK][CHANNELS]; // dt, dt * u
  float b[CHUNK][STATES], c[CHUNK][STATES];
};
static_assert(STAGES * sizeof(Stage) + sizeof(Ready) <= 48 * 1024, "tiles exceed 48 KB of static shared memory");

__device__ __forceinline__ float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : __logf(1.0f + ex2(x * LOG2E)); }

__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool live) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(dst);
  const int bytes = live ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// CHUNK rows of WIDTH halves from a matrix with rows of `pitch`; rows past L and columns past pitch are zero.
template <int WIDTH>
__device__ __forceinline__ void load_tile(__half* tile, const __half* src, size_t first, int t0, int L, int col0, int pitch) {
#pragma unroll 2
  for (int i = threadIdx.x; i < CHUNK * WIDTH / 8; i += THREADS) {
    const int t = t0 + i * 8 / WIDTH, col = col0 + i * 8 % WIDTH;
    const bool live = t < L && col < pitch;
    cp_async16(tile + i * 8, live ? src + (first + t) * pitch + col : src, live);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
scan(const __half* __restrict__ u, const __half* __restrict__ delta, const float* __restrict__ A, const __half* __restrict__ Bm,
     const __half* __restrict__ Cm, const __half* __restrict__ z, const float* __restrict__ skip, const float* __restrict__ bias,
     __half* __restrict__ y, int L, int D) {
  __shared__ Stage stages[STAGES];
  __shared__ Ready ready;
  const int lane = threadIdx.x % LANES, channel = threadIdx.x / LANES;
  const int d0 = blockIdx.x * CHANNELS, d = min(d0 + channel, D - 1);
  const size_t first = (size_t)blockIdx.y * L;

  const auto load = [&](int t0) {
    Stage& s = stages[t0 / CHUNK % STAGES];
    load_tile<CHANNELS>(s.u[0], u, first, t0, L, d0, D);
    load_tile<CHANNELS>(s.delta[0], delta, first, t0, L, d0, D);
    load_tile<CHANNELS>(s.z[0], z, first, t0, L, d0, D);
    load_tile<STATES>(s.b[0], Bm, first, t0, L, 0, STATES);
    load_tile<STATES>(s.c[0], Cm, first, t0, L, 0, STATES);
  };
  for (int s = 0; s < STAGES - 1; ++s) load(s * CHUNK), cp_async_commit();

  float rate[ITEMS], h[ITEMS] = {};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) rate[i] = A[d * STATES + lane * ITEMS + i] * LOG2E;
  const float through = skip[d];

  for (int t0 = 0; t0 < L; t0 += CHUNK) {
    Stage& s = stages[t0 / CHUNK % STAGES];
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (t0 + (STAGES - 1) * CHUNK < L) load(t0 + (STAGES - 1) * CHUNK);
    cp_async_commit();

    for (int i = threadIdx.x; i < CHUNK * CHANNELS; i += THREADS) {
      const float dt = softplus(__half2float(s.delta[0][i]) + bias[min(d0 + i % CHANNELS, D - 1)]);
      ready.drive[0][i] = make_float2(dt, dt * __half2float(s.u[0][i]));
    }
    for (int i = threadIdx.x; i < CHUNK * STATES; i += THREADS) {
      ready.b[0][i] = __half2float(s.b[0][i]);
      ready.c[0][i] = __half2float(s.c[0][i]);
    }
    __syncthreads(); // chunk ready

    for (int t = 0; t < CHUNK; t += LANES) {
      float mine = 0.0f; // the sum of step t + lane
#pragma unroll
      for (int j = 0; j < LANES; ++j) {
        const float2 drive = ready.drive[t + j][channel];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; i += 4) {
          const float4 b = *reinterpret_cast<const float4*>(&ready.b[t + j][lane * ITEMS + i]);
          const float4 c = *reinterpret_cast<const float4*>(&ready.c[t + j][lane * ITEMS + i]);
          sum += c.x * (h[i] = ex2(drive.x * rate[i]) * h[i] + drive.y * b.x);
          sum += c.y * (h[i + 1] = ex2(drive.x * rate[i + 1]) * h[i + 1] + drive.y * b.y);
          sum += c.z * (h[i + 2] = ex2(drive.x * rate[i + 2]) * h[i + 2] + drive.y * b.z);
          sum += c.w * (h[i + 3] = ex2(drive.x * rate[i + 3]) * h[i + 3] + drive.y * b.w);
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (j == lane) mine = sum;
      }
      const float zf = __half2float(s.z[t + lane][channel]);
      const float gate = __fdividef(zf, 1.0f + ex2(-zf * LOG2E));
      s.delta[t + lane][channel] = __float2half((mine + through * __half2float(s.u[t + lane][channel])) * gate);
    }
    __syncthreads(); // y of the chunk complete

    for (int i = threadIdx.x; i < CHUNK * CHANNELS / 8; i += THREADS) {
      const int t = t0 + i * 8 / CHANNELS, col = d0 + i * 8 % CHANNELS;
      if (t < L && col < D)
        *reinterpret_cast<uint4*>(y + (first + t) * D + col) = *reinterpret_cast<const uint4*>(s.delta[0] + i * 8);
    }
  }
}
