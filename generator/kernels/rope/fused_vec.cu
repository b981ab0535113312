// rope/fused_vec: rotates the pairs (x[i], x[i + D/2]) of every head of q and of k by position * theta^(-2i/D), fp16.
//
// One launch for q and k together. A thread takes VEC neighbouring pairs as two packets, D/2 apart, reads
// their sines and cosines from the fp32 tables once and rotates the same pairs of HEADS heads with them;
// all packets are requested before the first is rotated.
// Gains over per_head: one launch, whole sectors, no powf or sincos, table rows reused from registers.
//
// Launch: grid = ceil(M * ceil((H + KV) / HEADS) * D / 2 / VEC / THREADS), block = THREADS, no dynamic shared
//         memory.
// Needs:  any arch, D / 2 % VEC == 0. q is [M, H, D], k is [M, KV, D], cosine and sine are [positions, D / 2].
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int VEC = 4;       // pairs a thread rotates per head
constexpr int HEADS = 1;     // heads that share one read of the tables
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(VEC == 2 || VEC == 4 || VEC == 8, "VEC must be 2, 4 or 8: one aligned access");
static_assert(HEADS >= 1 && HEADS * VEC <= 32, "HEADS * VEC packets do not fit the registers");

struct __align__(VEC * 2) Packet {
  __half2 h[VEC / 2];
};
struct __align__(VEC == 2 ? 8 : 16) Angles {
  float2 f[VEC / 2];
};

extern "C" __global__ void __launch_bounds__(THREADS)
rope_fused_vec(const __half* __restrict__ q, const __half* __restrict__ k, const int* __restrict__ positions,
               const float* __restrict__ cosine, const float* __restrict__ sine, __half* __restrict__ q_out,
               __half* __restrict__ k_out, int tokens, int heads, int kv_heads, int dim) {
  const int half_dim = dim / 2, packets = half_dim / VEC, groups = (heads + kv_heads + HEADS - 1) / HEADS;
  const int id = blockIdx.x * THREADS + threadIdx.x;
  const int packet = id % packets, group = id / packets % groups, token = id / packets / groups;
  if (token >= tokens) return;

  size_t at[HEADS];
  Packet low[HEADS], high[HEADS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = group * HEADS + h;
    const bool is_q = head < heads;
    at[h] = (is_q ? (size_t)token * heads + head : (size_t)token * kv_heads + head - heads) * dim + packet * VEC;
    if (head < heads + kv_heads) {
      const __half* x = is_q ? q : k;
      low[h] = *reinterpret_cast<const Packet*>(x + at[h]);
      high[h] = *reinterpret_cast<const Packet*>(x + at[h] + half_dim);
    }
  }

  const size_t row = (size_t)positions[token] * half_dim + packet * VEC;
  const Angles c = *reinterpret_cast<const Angles*>(cosine + row), s = *reinterpret_cast<const Angles*>(sine + row);
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const int head = group * HEADS + h;
    if (head >= heads + kv_heads) break;
    Packet a, b;
#pragma unroll
    for (int j = 0; j < VEC / 2; ++j) {
      const float2 x = __half22float2(low[h].h[j]), y = __half22float2(high[h].h[j]);
      a.h[j] = __floats2half2_rn(x.x * c.f[j].x - y.x * s.f[j].x, x.y * c.f[j].y - y.y * s.f[j].y);
      b.h[j] = __floats2half2_rn(y.x * c.f[j].x + x.x * s.f[j].x, y.y * c.f[j].y + x.y * s.f[j].y);
    }
    __half* out = head < heads ? q_out : k_out;
    *reinterpret_cast<Packet*>(out + at[h]) = a;
    *reinterpret_cast<Packet*>(out + at[h] + half_dim) = b;
  }
}
