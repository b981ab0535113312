// Barriers, shuffles, votes, warp reductions and atomics.
#pragma once
static inline void __syncthreads() { emu::block_barrier(0, 0); }
static inline int __syncthreads_count(int p) { return emu::block_vote(p, emu::COUNT); }
static inline int __syncthreads_and(int p) { return emu::block_vote(p, emu::AND); }
static inline int __syncthreads_or(int p) { return emu::block_vote(p, emu::OR); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { emu::warp_barrier(mask); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
[[noreturn]] static inline void __trap() { emu::fail(emu::TRAP, "__trap"); }

namespace emu {
static inline int segment(int width) { return int(self->lane) & ~(width - 1); }

template <class T> static inline T shuffle(unsigned mask, T v, int src, const char* where) {
  struct P { T in, out; int src; } p{v, v, src};
  warp_meet(mask, p, where, [mask](P** s) {
    for (int i = 0; i < 32; ++i) {
      if (!(mask & self->warp->lanes & 1u << i)) continue;
      if (!(mask & self->warp->lanes & 1u << s[i]->src))
        fail(TRAP, "shuffle reads lane %d, which is not in mask %08x", s[i]->src, mask & self->warp->lanes);
      s[i]->out = s[s[i]->src]->in;
    }
  });
  return p.out;
}
template <class T, class F> static inline T reduce(unsigned m, T v, F op, const char* where) {
  struct P { T v; } p{v};
  warp_meet(m, p, where, [&](P** s) {
    T r{};
    bool first = true;
    for (int i = 0; i < 32; ++i)
      if (m & self->warp->lanes & 1u << i) r = first ? s[i]->v : op(r, s[i]->v), first = false;
    for (int i = 0; i < 32; ++i)
      if (m & self->warp->lanes & 1u << i) s[i]->v = r;
  });
  return p.v;
}
} // namespace emu

template <class T> static inline T __shfl_sync(unsigned m, T v, int src, int width = 32) {
  return emu::shuffle(m, v, emu::segment(width) + (src & (width - 1)), "__shfl_sync");
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int x, int width = 32) {
  const int lane = emu::self->lane, src = lane ^ x;
  return emu::shuffle(m, v, src < emu::segment(width) + width ? src : lane, "__shfl_xor_sync");
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned d, int width = 32) {
  const int lane = emu::self->lane, src = lane + int(d);
  return emu::shuffle(m, v, src < emu::segment(width) + width ? src : lane, "__shfl_down_sync");
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned d, int width = 32) {
  const int lane = emu::self->lane, src = lane - int(d);
  return emu::shuffle(m, v, src >= emu::segment(width) ? src : lane, "__shfl_up_sync");
}
static inline unsigned __ballot_sync(unsigned m, int pred) {
  return emu::reduce(m, unsigned(pred != 0) << emu::self->lane, [](unsigned a, unsigned b) { return a | b; }, "__ballot_sync");
}
static inline int __any_sync(unsigned m, int pred) { return __ballot_sync(m, pred) != 0; }
static inline int __all_sync(unsigned m, int pred) { return __ballot_sync(m, !pred) == 0; }
template <class T> static inline unsigned __match_any_sync(unsigned m, T v) {
  struct P { T v; unsigned out; } p{v, 0};
  emu::warp_meet(m, p, "__match_any_sync", [m](P** s) {
    const unsigned live = m & emu::self->warp->lanes;
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < 32; ++j)
        if ((live >> i & 1) && (live >> j & 1) && s[i]->v == s[j]->v) s[i]->out |= 1u << j;
  });
  return p.out;
}
#define EMU_REDUCE(name, expr)                                                                         \
  template <class T> static inline T name(unsigned m, T v) {                                           \
    static_assert(sizeof(T) == 4, "warp reductions take 32-bit integers");                             \
    return emu::reduce(m, v, [](T a, T b) { return T(expr); }, #name);                                 \
  }
EMU_REDUCE(__reduce_add_sync, a + b)
EMU_REDUCE(__reduce_max_sync, a < b ? b : a)
EMU_REDUCE(__reduce_min_sync, b < a ? b : a)
EMU_REDUCE(__reduce_or_sync, a | b)
EMU_REDUCE(__reduce_and_sync, a& b)
EMU_REDUCE(__reduce_xor_sync, a ^ b)

// The body of an atomic runs between two switches of fiber, so it is one.
#define EMU_ATOMIC(name, expr)                                                                         \
  template <class T> EMU_QUIET static inline T name(T* p, std::common_type_t<T> v) {                   \
    emu::aligned(p, sizeof(T)), emu::touch(p, sizeof(T), emu::ATOMIC);                                 \
    const T old = *p;                                                                                  \
    *p = (expr);                                                                                       \
    return old;                                                                                        \
  }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicMax, old < v ? v : old)
EMU_ATOMIC(atomicMin, v < old ? v : old)
EMU_ATOMIC(atomicAnd, old& v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicXor, old ^ v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicInc, old >= v ? T(0) : T(old + 1))
EMU_ATOMIC(atomicDec, old == 0 || old > v ? v : T(old - 1))
template <class T> EMU_QUIET static inline T atomicCAS(T* p, std::common_type_t<T> compare, std::common_type_t<T> v) {
  emu::aligned(p, sizeof(T)), emu::touch(p, sizeof(T), emu::ATOMIC);
  const T old = *p;
  if (old == compare) *p = v;
  return old;
}
