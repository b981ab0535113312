// sm_90 and later: clusters with their shared memories, mbarrier, bulk copies and tensor maps (TMA), wgmma from shared memory.
// The latter three in clusters of one block only.
// Asynchronous work lands as late as the program allows, bulk copies when no thread can run, wgmma at its wait_group, so
// code that forgets to wait reads poison.
#pragma once
namespace emu {
struct TensorMap { // what emulate.py puts where cuTensorMapEncodeTiled would write; sizes in elements
  uint64_t base, width, height, row_bytes;
  uint32_t box_x, box_y, elem_bytes, swizzle; // swizzle: 1 for the 128-byte mode, 0 for none
};
enum class In : int { F16, BF16, E4M3, S8 };
unsigned* mbar_phase(unsigned addr);
void mbar_init(unsigned addr, int count);
void mbar_arrive(unsigned addr, int count, int tx);
void bulk_load(unsigned dst, const void* src, unsigned bytes, unsigned bar);
void tma_load(unsigned dst, const TensorMap* map, int x, int y, unsigned bar);
void tma_store(const TensorMap* map, int x, int y, unsigned src);
void bulk_commit();
void bulk_wait(unsigned pending);
void wgmma_issue(In in, void* const* d, unsigned regs, uint64_t a, uint64_t b, int accumulate);
void wgmma_commit();
void wgmma_wait(unsigned pending);

// Operands: R accumulators, descriptors of A and B, whether to accumulate; then, by type, signs of A and B (1: as they are) and
// for 16-bit types whether each is transposed (0: K-major).
static inline uint64_t wgmma_number(float) { return 0; }
template <class I> static inline uint64_t wgmma_number(I i) { return uint64_t(i); }
template <In IN, unsigned R, class... T> EMU_QUIET static inline void wgmma_call(T&... t) {
  constexpr unsigned wanted = R + (IN == In::S8 ? 3 : IN == In::E4M3 ? 5 : 7);
  static_assert(sizeof...(T) == wanted, "wgmma with A in registers, or with another number of operands, is not emulated");
  void* const address[] = {const_cast<void*>(static_cast<const void*>(&t))...};
  const uint64_t number[] = {wgmma_number(t)...};
  if (IN != In::S8 && (number[R + 3] != 1 || number[R + 4] != 1)) fail(TRAP, "wgmma: negated operands are not emulated");
  if ((IN == In::F16 || IN == In::BF16) && (number[wanted - 2] || number[wanted - 1])) fail(TRAP, "wgmma: transposed operands are not emulated");
  wgmma_issue(IN, address, R, number[R], number[R + 1], int(number[R + 2]));
}

template <class... D> EMU_QUIET static inline void cluster_load(unsigned p, D&... d) {
  constexpr unsigned each = sizeof(std::tuple_element_t<0, std::tuple<D...>>);
  const char* at = static_cast<const char*>(cluster_ptr(p, each * sizeof...(D), READ));
  unsigned i = 0;
  ((memcpy(&d, at + each * i++, each)), ...);
}
template <class... D> EMU_QUIET static inline void cluster_store(unsigned p, D... d) {
  constexpr unsigned each = sizeof(std::tuple_element_t<0, std::tuple<D...>>);
  char* at = static_cast<char*>(cluster_ptr(p, each * sizeof...(D), WRITE));
  unsigned i = 0;
  ((memcpy(at + each * i++, &d, each)), ...);
}
} // namespace emu

// ---- clusters ----------------------------------------------------------------------------------
#define emu_cluster_ctarank emu::cluster_rank()
#define emu_cluster_nctarank emu::cluster_size()
static inline void ptx_barrier_cluster_arrive() { emu::cluster_arrive(); }
static inline void ptx_barrier_cluster_wait() { emu::cluster_wait(); }
#define ptx_barrier_cluster_arrive_aligned ptx_barrier_cluster_arrive
#define ptx_barrier_cluster_arrive_release ptx_barrier_cluster_arrive
#define ptx_barrier_cluster_arrive_release_aligned ptx_barrier_cluster_arrive
#define ptx_barrier_cluster_arrive_relaxed ptx_barrier_cluster_arrive
#define ptx_barrier_cluster_arrive_relaxed_aligned ptx_barrier_cluster_arrive
#define ptx_barrier_cluster_wait_aligned ptx_barrier_cluster_wait
#define ptx_barrier_cluster_wait_acquire ptx_barrier_cluster_wait
#define ptx_barrier_cluster_wait_acquire_aligned ptx_barrier_cluster_wait
static inline void ptx_mapa_shared_cluster_u32(unsigned& d, unsigned p, unsigned rank) { d = emu::map_shared(p, rank); }
#define EMU_CLUSTER(suffix, T)                                                                                                   \
  static inline void ptx_ld_shared_cluster_##suffix(T& a, unsigned p) { emu::cluster_load(p, a); }                               \
  static inline void ptx_ld_shared_cluster_v2_##suffix(T& a, T& b, unsigned p) { emu::cluster_load(p, a, b); }                   \
  static inline void ptx_ld_shared_cluster_v4_##suffix(T& a, T& b, T& c, T& d, unsigned p) { emu::cluster_load(p, a, b, c, d); } \
  static inline void ptx_st_shared_cluster_##suffix(unsigned p, T a) { emu::cluster_store(p, a); }                               \
  static inline void ptx_st_shared_cluster_v2_##suffix(unsigned p, T a, T b) { emu::cluster_store(p, a, b); }                    \
  static inline void ptx_st_shared_cluster_v4_##suffix(unsigned p, T a, T b, T c, T d) { emu::cluster_store(p, a, b, c, d); }
EMU_CLUSTER(u32, unsigned) EMU_CLUSTER(b32, unsigned) EMU_CLUSTER(s32, int) EMU_CLUSTER(f32, float)

// ---- mbarrier ----------------------------------------------------------------------------------
static inline void ptx_mbarrier_init_shared_b64(unsigned bar, int count) { emu::mbar_init(bar, count); }
static inline void ptx_mbarrier_inval_shared_b64(unsigned) {}
static inline void ptx_fence_mbarrier_init_release_cluster() {}
static inline void ptx_fence_proxy_async() {}
static inline void ptx_fence_proxy_async_shared() {}
static inline void ptx_mbarrier_arrive_expect_tx_shared_b64(int, unsigned bar, int bytes) { emu::mbar_arrive(bar, 1, bytes); }
static inline void ptx_mbarrier_expect_tx_shared_b64(unsigned bar, int bytes) { emu::mbar_arrive(bar, 0, bytes); }
static inline void ptx_mbarrier_arrive_shared_b64(int, unsigned bar, int count = 1) { emu::mbar_arrive(bar, count, 0); }
EMU_QUIET static inline void ptx_mbarrier_try_wait_parity_shared_b64(int& done, unsigned bar, int parity) {
  unsigned* phase = emu::mbar_phase(bar);
  if ((*phase & 1) == unsigned(parity)) emu::wait_change(phase, "mbarrier.try_wait");
  done = (*phase & 1) != unsigned(parity);
}
#define ptx_mbarrier_test_wait_parity_shared_b64 ptx_mbarrier_try_wait_parity_shared_b64

// ---- bulk copies -------------------------------------------------------------------------------
static inline void ptx_cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(unsigned dst, const void* src, unsigned bytes, unsigned bar) {
  emu::bulk_load(dst, src, bytes, bar);
}
template <class Map>
static inline void ptx_cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(unsigned dst, const Map* map, int x, int y, unsigned bar) {
  emu::tma_load(dst, reinterpret_cast<const emu::TensorMap*>(map), x, y, bar);
}
template <class Map>
static inline void ptx_cp_async_bulk_tensor_2d_global_shared_bulk_group(const Map* map, int x, int y, unsigned src) {
  emu::tma_store(reinterpret_cast<const emu::TensorMap*>(map), x, y, src);
}
static inline void ptx_cp_async_bulk_commit_group() { emu::bulk_commit(); }
static inline void ptx_cp_async_bulk_wait_group(int n) { emu::bulk_wait(n); }
static inline void ptx_cp_async_bulk_wait_group_read(int n) { emu::bulk_wait(n); }
template <class Map> static inline void ptx_prefetch_tensormap(const Map*) {}

// ---- wgmma -------------------------------------------------------------------------------------
static inline void ptx_wgmma_fence_sync_aligned() {}
static inline void ptx_wgmma_commit_group_sync_aligned() { emu::wgmma_commit(); }
static inline void ptx_wgmma_wait_group_sync_aligned(int n) { emu::wgmma_wait(n); }
static inline void ptx_setmaxnreg_inc_sync_aligned_u32(int) {}
static inline void ptx_setmaxnreg_dec_sync_aligned_u32(int) {}
#define EMU_WGMMA(N, suffix, IN)                                                                       \
  template <class... T> static inline void ptx_wgmma_mma_async_sync_aligned_m64n##N##suffix(T&&... t) { \
    emu::wgmma_call<emu::In::IN, N / 2>(t...);                                                         \
  }
#define EMU_WGMMAS(N)                                                                                  \
  EMU_WGMMA(N, k16_f32_f16_f16, F16) EMU_WGMMA(N, k16_f32_bf16_bf16, BF16)                             \
  EMU_WGMMA(N, k32_f32_e4m3_e4m3, E4M3) EMU_WGMMA(N, k32_s32_s8_s8, S8)
EMU_WGMMAS(8) EMU_WGMMAS(16) EMU_WGMMAS(24) EMU_WGMMAS(32) EMU_WGMMAS(48) EMU_WGMMAS(64) EMU_WGMMAS(80) EMU_WGMMAS(96)
EMU_WGMMAS(112) EMU_WGMMAS(128) EMU_WGMMAS(144) EMU_WGMMAS(160) EMU_WGMMAS(176) EMU_WGMMAS(192) EMU_WGMMAS(208)
EMU_WGMMAS(224) EMU_WGMMAS(240) EMU_WGMMAS(256)
