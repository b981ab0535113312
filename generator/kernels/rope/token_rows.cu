// rope/token_rows: rotates the pairs (x[i], x[i + D/2]) of every head of q and of k by position * theta^(-2i/D), fp16.
//
// A block owns TOKENS tokens. It copies their rows of the cosine and sine tables to shared memory once, then
// walks all heads of q and k; packets of 16 bytes, UNROLL pairs of them requested together.
// Gains over fused_vec: each table row is read once, not once per block that shares the token; no position
// or table latency after the first barrier, and longer blocks.
//
// Launch: grid = ceil(M / TOKENS), block = THREADS, dynamic shared memory = TOKENS * D * 4 bytes.
// Needs:  any arch, D / 2 % 8 == 0. q is [M, H, D], k is [M, KV, D], cosine and sine are [positions, D / 2].
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int TOKENS = 1;    // tokens of one block
constexpr int UNROLL = 1;    // packet pairs a thread keeps in flight
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS must be whole warps, 1024 at most");
static_assert(TOKENS >= 1 && TOKENS <= 8, "TOKENS must be 1 to 8");
static_assert(UNROLL == 1 || UNROLL == 2 || UNROLL == 4, "UNROLL must be 1, 2 or 4");

constexpr int VEC = 8; // halves of a packet

struct __align__(16) Packet {
  __half2 h[VEC / 2];
};

extern "C" __global__ void __launch_bounds__(THREADS)
rope_token_rows(const __half* __restrict__ q, const __half* __restrict__ k, const int* __restrict__ positions,
                const float* __restrict__ cosine, const float* __restrict__ sine, __half* __restrict__ q_out,
                __half* __restrict__ k_out, int tokens, int heads, int kv_heads, int dim) {
  extern __shared__ float2 turn[]; // [TOKENS][D / 2], (cosine, sine)
  const int half_dim = dim / 2, first = blockIdx.x * TOKENS, count = min(TOKENS, tokens - first);
  for (int i = threadIdx.x; i < count * half_dim; i += THREADS) {
    const size_t at = (size_t)positions[first + i / half_dim] * half_dim + i % half_dim;
    turn[i] = make_float2(cosine[at], sine[at]);
  }
  __syncthreads();

  const int packets = half_dim / VEC, all_heads = heads + kv_heads, total = count * all_heads * packets;
  for (int base = threadIdx.x; base < total; base += THREADS * UNROLL) {
    Packet low[UNROLL], high[UNROLL];
    size_t at[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int i = base + u * THREADS, head = i / packets % all_heads, token = first + i / packets / all_heads;
      const bool is_q = head < heads;
      at[u] = (is_q ? (size_t)token * heads + head : (size_t)token * kv_heads + head - heads) * dim + i % packets * VEC;
      if (i < total) {
        const __half* x = is_q ? q : k;
        low[u] = *reinterpret_cast<const Packet*>(x + at[u]);
        high[u] = *reinterpret_cast<const Packet*>(x + at[u] + half_dim);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int i = base + u * THREADS;
      if (i >= total) break;
      const float2* cs = turn + i / packets / all_heads * half_dim + i % packets * VEC;
      Packet a, b;
#pragma unroll
      for (int j = 0; j < VEC / 2; ++j) {
        const float2 x = __half22float2(low[u].h[j]), y = __half22float2(high[u].h[j]), t = cs[2 * j], w = cs[2 * j + 1];
        a.h[j] = __floats2half2_rn(x.x * t.x - y.x * t.y, x.y * w.x - y.y * w.y);
        b.h[j] = __floats2half2_rn(y.x * t.x + x.x * t.y, y.y * w.x + x.y * w.y);
      }
      __half* out = i / packets % all_heads < heads ? q_out : k_out;
      *reinterpret_cast<Packet*>(out + at[u]) = a;
      *reinterpret_cast<Packet*>(out + at[u] + half_dim) = b;
    }
  }
}
