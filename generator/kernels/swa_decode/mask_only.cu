// swa_decode/mask_only: out[b, h, :] = softmax(scale * q[b, h, :] . K) @ V over the last `window` tokens, paged fp16 cache, GQA.
//
// One block owns one (sequence, KV head) and walks the whole sequence in tiles of BLOCK_N tokens: K goes
// through shared memory, a thread scores one token for HEADS query heads, and scores before the window are
// masked. Then threads own output columns and read V straight from the cache, UNROLL rows in flight; a tile
// without a live token has no weight, so its V is not read. Simple and correct; but K of all tokens is read
// for a window that may be a small part of them.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, kv_heads, dim]; table [batch, max_pages]; lengths [batch].
// Launch: grid = (kv_heads, batch), block = THREADS, dynamic shared memory =
//         (BLOCK_N * (dim + 8) + group * dim) * 2 + group * (dim + BLOCK_N + 3) * 4 bytes, group = heads / kv_heads.
// Needs:  any arch, THREADS % (dim / 8) == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int BLOCK_N = 64;  // tokens per tile
constexpr int HEADS = 2;     // query heads a thread scores at once
constexpr int UNROLL = 1;    // V rows a thread keeps in flight
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(BLOCK_N % 32 == 0, "BLOCK_N must be a multiple of 32: whole warps score the same heads");
static_assert(HEADS >= 1 && HEADS <= 8, "HEADS must be 1 to 8: their scores are held in registers");
static_assert(UNROLL >= 1 && UNROLL <= 8, "UNROLL must be 1 to 8");

constexpr int WARPS = THREADS / 32;
constexpr float NEVER = -1e30f; // score of a masked token; exp of it is 0

struct __align__(16) Half8 {
  __half h[8];
};

// Cache row of a token, counted in tokens over all pages.
__device__ __forceinline__ size_t cache_row(const int* pages, int token, int page) {
  return (size_t)pages[token / page] * page + token % page;
}

extern "C" __global__ void __launch_bounds__(THREADS)
swa_decode(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
           const int* __restrict__ table, const int* __restrict__ lengths, __half* __restrict__ out,
           int heads, int kv_heads, int dim, int page, int max_pages, int window, float scale) {
  const int kv_head = blockIdx.x, b = blockIdx.y, group = heads / kv_heads;
  const int packets = dim / 8, packet = threadIdx.x % packets;
  const int length = lengths[b], first = max(length - window, 0);
  const int* pages = table + b * max_pages;
  const size_t at = ((size_t)b * heads + kv_head * group) * dim;

  extern __shared__ Half8 tile[];                                 // [BLOCK_N][packets + 1]
  Half8* query = tile + BLOCK_N * (packets + 1);                  // [group][packets]
  float* sum = reinterpret_cast<float*>(query + group * packets); // [group][dim] output before division
  float* weight = sum + group * dim;                              // [group][BLOCK_N] score, then exp(score - best)
  float* best = weight + group * BLOCK_N;                         // [group]
  float* total = best + group;                                    // [group]
  float* fix = total + group;                                     // [group]

  for (int i = threadIdx.x; i < group * packets; i += THREADS) query[i] = reinterpret_cast<const Half8*>(q + at)[i];
  for (int i = threadIdx.x; i < group * dim; i += THREADS) sum[i] = 0.0f;
  for (int g = threadIdx.x; g < group; g += THREADS) {
    best[g] = NEVER;
    total[g] = 0.0f;
  }

  for (int start = 0; start < length; start += BLOCK_N) {
    const int count = min(BLOCK_N, length - start);
    __syncthreads();
#pragma unroll 4
    for (int t = threadIdx.x / packets; t < count; t += THREADS / packets) {
      const size_t row = cache_row(pages, start + t, page) * kv_heads + kv_head;
      tile[t * (packets + 1) + packet] = reinterpret_cast<const Half8*>(k)[row * packets + packet];
    }
    __syncthreads();

    for (int i = threadIdx.x; i < (group + HEADS - 1) / HEADS * BLOCK_N; i += THREADS) {
      const int token = i % BLOCK_N, g = i / BLOCK_N * HEADS;
      float score[HEADS] = {};
      for (int p = 0; token < count && p < packets; ++p) {
        const Half8 x = tile[token * (packets + 1) + p];
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          const Half8 y = query[min(g + h, group - 1) * packets + p];
#pragma unroll
          for (int j = 0; j < 8; ++j) score[h] += __half2float(x.h[j]) * __half2float(y.h[j]);
        }
      }
#pragma unroll
      for (int h = 0; h < HEADS; ++h)
        if (g + h < group) weight[(g + h) * BLOCK_N + token] = token < count && start + token >= first ? score[h] * scale : NEVER;
    }
    if (start + count <= first) continue;
    __syncthreads();

    for (int g = threadIdx.x / 32; g < group; g += WARPS) {
      float top = best[g], tile_sum = 0.0f;
      for (int t = threadIdx.x % 32; t < BLOCK_N; t += 32) top = fmaxf(top, weight[g * BLOCK_N + t]);
      for (int offset = 16; offset > 0; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      for (int t = threadIdx.x % 32; t < BLOCK_N; t += 32) {
        weight[g * BLOCK_N + t] = __expf(weight[g * BLOCK_N + t] - top);
        tile_sum += weight[g * BLOCK_N + t];
      }
      for (int offset = 16; offset > 0; offset >>= 1) tile_sum += __shfl_xor_sync(0xffffffffu, tile_sum, offset);
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        fix[g] = __expf(best[g] - top);
        total[g] = total[g] * fix[g] + tile_sum;
        best[g] = top;
      }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < group * dim; i += THREADS) {
      const int g = i / dim;
      float o = sum[i] * fix[g];
#pragma unroll UNROLL
      for (int t = 0; t < count; ++t) {
        const size_t row = cache_row(pages, start + t, page) * kv_heads + kv_head;
        o += weight[g * BLOCK_N + t] * __half2float(v[row * dim + i % dim]);
      }
      sum[i] = o;
    }
  }

  for (int i = threadIdx.x; i < group * dim; i += THREADS) out[at + i] = __float2half(sum[i] / total[i / dim]);
}
