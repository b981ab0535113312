// rope/per_head: rotates the pairs (x[i], x[i + D/2]) of every head of q and of k by position * theta^(-2i/D), fp16.
//
// One launch for q and one for k. A thread rotates one pair and computes its sine and cosine itself, ITEMS
// pairs one after another. Heads run fastest over the threads, for they share an angle; so neighbours read
// and write D halves apart, and every access of a warp falls into 32 sectors.
// What to gain from here: tables or shared angles for powf, cosf and sinf, some 200 instructions for six flops;
// pairs side by side in a warp for whole sectors; one launch for q and k.
//
// Launch: once for q and once for k: grid = ceil(M * heads * D / 2 / (THREADS * ITEMS)), block = THREADS, no
//         dynamic shared memory.
// Needs:  any arch. q and k are [M, heads, D].
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads per block
constexpr int ITEMS = 8;     // pairs a thread rotates, one after another
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(ITEMS == 1 || ITEMS == 2 || ITEMS == 4 || ITEMS == 8, "ITEMS must be 1, 2, 4 or 8");

extern "C" __global__ void __launch_bounds__(THREADS)
rope_per_head(const __half* __restrict__ x, const int* __restrict__ positions, __half* __restrict__ y, int tokens, int heads,
              int dim, float theta) {
  const int half_dim = dim / 2;
#pragma unroll 1
  for (int i = 0; i < ITEMS; ++i) {
    const int id = (blockIdx.x * ITEMS + i) * THREADS + threadIdx.x;
    const int head = id % heads, pair = id / heads % half_dim, token = id / heads / half_dim;
    if (token >= tokens) return;

    const float angle = positions[token] * powf(theta, -2.0f * pair / dim);
    const float c = cosf(angle), s = sinf(angle);
    const size_t at = ((size_t)token * heads + head) * dim + pair;
    const float low = __half2float(x[at]), high = __half2float(x[at + half_dim]);
    y[at] = __float2half(low * c - high * s);
    y[at + half_dim] = __float2half(high * c + low * s);
  }
}
