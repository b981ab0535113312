// kv_append/scalar: k_cache[slot[m]] = k[m], v_cache[slot[m]] = v[m] for every token m with slot[m] >= 0, fp16.
//
// One thread owns one head of one token and copies it half by half, k first and then v. Neighbouring
// threads work on neighbouring heads, D halves apart, so every access of a warp falls into 32 different
// sectors; correct, and about as slow as a copy can be made.
//
// Launch: grid = ceil(M * KV / THREADS), block = THREADS, no dynamic shared memory.
// Needs:  any arch. Caches are [pages, page, KV, D]; a slot counts tokens over all pages.
#include <cuda_fp16.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 64; // threads per block
constexpr int UNROLL = 1;   // halves a thread loads before it stores the first
// -----------------------------------------------------------------------------

static_assert(THREADS % 32 == 0, "THREADS must be whole warps");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(UNROLL >= 1 && UNROLL <= 8, "UNROLL must be 1 to 8");

__device__ __forceinline__ void copy_head(const __half* __restrict__ from, __half* __restrict__ to, int dim) {
#pragma unroll UNROLL
  for (int d = 0; d < dim; ++d) to[d] = from[d];
}

extern "C" __global__ void __launch_bounds__(THREADS)
kv_append(const __half* __restrict__ k, const __half* __restrict__ v, const long long* __restrict__ slots,
          __half* __restrict__ k_cache, __half* __restrict__ v_cache, int tokens, int kv_heads, int dim, int page) {
  const int id = blockIdx.x * THREADS + threadIdx.x;
  const int token = id / kv_heads, head = id % kv_heads;
  if (token >= tokens) return;

  const long long slot = slots[token];
  if (slot < 0) return; // padding of the batch

  const long long row = slot / page * page + slot % page;
  const size_t from = ((size_t)token * kv_heads + head) * dim;
  const size_t to = (row * kv_heads + head) * dim;
  copy_head(k + from, k_cache + to, dim);
  copy_head(v + from, v_cache + to, dim);
}
