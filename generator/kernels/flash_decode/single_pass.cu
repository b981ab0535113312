// flash_decode/single_pass: out[b, h, :] = softmax(scale * q[b, h, :] . K[b, :, h, :]) @ V[b, :, h, :], paged fp16 cache.
//
// One block owns one (sequence, head) and walks the tokens once, THREADS at a time, with a running
// softmax. In a tile each thread scores one token by itself; then each thread owns output columns and
// adds the tile's V rows one after another. Simple and correct; lanes read K a whole row apart, so every
// access takes a sector of its own, and only UNROLL rows of V are in flight.
//
// Layouts: q, out [batch, heads, dim]; k, v [pages, page, heads, dim]; table [batch, max_pages]; lengths [batch].
// Launch: grid = (heads, batch), block = THREADS, dynamic shared memory = (2 * dim + 2 * THREADS) * 4 bytes.
// Needs:  any arch, dim % VEC == 0.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 128; // threads per block, tokens per tile
constexpr int VEC = 1;       // halves a thread takes from its K row per load
constexpr int UNROLL = 1;    // V rows a thread keeps in flight
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(VEC == 1 || VEC == 2 || VEC == 4 || VEC == 8, "VEC must be 1, 2, 4 or 8: one aligned access");
static_assert(UNROLL >= 1 && UNROLL <= 8, "UNROLL must be 1 to 8");

constexpr float NEVER = -1e30f; // below any score; exp of it is 0

struct __align__(VEC * 2) Packet {
  __half h[VEC];
};

extern "C" __global__ void __launch_bounds__(THREADS)
flash_decode(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
             const int* __restrict__ table, const int* __restrict__ lengths, __half* __restrict__ out,
             int heads, int dim, int page, int max_pages, float scale) {
  extern __shared__ float shared[];
  float* query = shared;                                 // [dim]
  float* sum = query + dim;                              // [dim] output before division
  float* weight = sum + dim;                             // [THREADS] score, then exp(score - best)
  int* row = reinterpret_cast<int*>(weight + THREADS);   // [THREADS] cache row of a token

  const int head = blockIdx.x, b = blockIdx.y, length = lengths[b];
  const size_t at = ((size_t)b * heads + head) * dim;
  for (int d = threadIdx.x; d < dim; d += THREADS) {
    query[d] = __half2float(q[at + d]) * scale;
    sum[d] = 0.0f;
  }
  __syncthreads();

  float best = NEVER, total = 0.0f;
  for (int start = 0; start < length; start += THREADS) {
    const int token = start + threadIdx.x, count = min(THREADS, length - start);
    float score = NEVER;
    if (token < length) {
      row[threadIdx.x] = table[b * max_pages + token / page] * page + token % page;
      const Packet* kp = reinterpret_cast<const Packet*>(k + ((size_t)row[threadIdx.x] * heads + head) * dim);
      score = 0.0f;
      for (int i = 0; i < dim / VEC; ++i) {
        const Packet packet = kp[i];
#pragma unroll
        for (int j = 0; j < VEC; ++j) score += query[i * VEC + j] * __half2float(packet.h[j]);
      }
    }
    weight[threadIdx.x] = score;
    __syncthreads();

    const float before = best;
    for (int t = 0; t < count; ++t) best = fmaxf(best, weight[t]);
    const float fix = __expf(before - best);
    __syncthreads();
    weight[threadIdx.x] = __expf(score - best);
    __syncthreads();

    total *= fix;
    for (int t = 0; t < count; ++t) total += weight[t];
    for (int d = threadIdx.x; d < dim; d += THREADS) {
      float o = sum[d] * fix;
#pragma unroll UNROLL
      for (int t = 0; t < count; ++t) o += weight[t] * __half2float(v[((size_t)row[t] * heads + head) * dim + d]);
      sum[d] = o;
    }
    __syncthreads();
  }

  for (int d = threadIdx.x; d < dim; d += THREADS) out[at + d] = __float2half(sum[d] / total);
}
