// What the emulator's headers ask of its runtime: fibers, meetings of a warp, memory checks, launches.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define EMU_QUIET __attribute__((no_sanitize("thread"))) // not instrumented: touches memory on the emulator's behalf

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace emu {
enum Fault : unsigned { NONE, RACE, BOUNDS, DEADLOCK, MISALIGNED, TRAP }; // order known to emulate.py
enum Access { READ, WRITE, ATOMIC };

struct Meet { unsigned mask, arrived, gen; void* slot[32]; };
struct Warp { unsigned lanes; Meet meets[8]; };
struct Fiber {
  uint3 tid;
  unsigned rank, lane, warp_epoch;
  Warp* warp;
  const unsigned* waiting; // blocked until *waiting != seen
  unsigned seen;
  const char* where;
  unsigned arrived, waited; // barriers of the cluster so far, counted from the first launch on
};
struct Launch { // mirrored by emulate.py
  unsigned grid[3], block[3], smem, order;
  const void* const* ranges; // begin, end pairs of the buffers the kernel may touch
  unsigned n_ranges, race_check, profile, fault;
  double stats[5]; // global requests, sectors, bytes; shared wavefronts: ideal, actual
  char error[256];
};

extern Fiber* self;
extern unsigned char dyn_smem[];
[[noreturn]] void fail(Fault fault, const char* fmt, ...);
void wait_change(const unsigned* word, const char* where);
void block_barrier(unsigned id, unsigned count);
void named_arrive(unsigned id, unsigned count);
enum Vote { COUNT, AND, OR };
int block_vote(int predicate, Vote vote);
void warp_barrier(unsigned mask);
Meet& meet(unsigned mask);
void async_copy(void* dst, const void* src, unsigned bytes, unsigned live); // cp.async of this thread
void async_commit();
void async_wait(unsigned pending);
unsigned shared_offset(const void* p);
void* shared_ptr(unsigned offset, unsigned bytes); // bounds-checked
unsigned cluster_rank();
unsigned cluster_size();
void cluster_arrive();
void cluster_wait();
unsigned map_shared(unsigned offset, unsigned rank);
void* cluster_ptr(unsigned mapped, unsigned bytes, Access kind); // of any block of the cluster, checked
int launch(Launch& cfg, dim3 cluster, void (*body)(void*), void* ctx);
int mismatch(Launch& cfg, unsigned given, unsigned taken);
int mismatch(Launch& cfg, unsigned argument);
void touch(const void* p, unsigned bytes, Access kind); // memory and race check of one access
void aligned(const void* p, unsigned bytes);
bool profiling();
void profile(const void* p, unsigned bytes, const void* pc);
void count_shared(const uintptr_t* addr, unsigned lanes, unsigned bytes);

template <class To, class From> static inline To bits(From f) {
  static_assert(sizeof(To) == sizeof(From));
  To t;
  memcpy(&t, &f, sizeof t);
  return t;
}

// All lanes of mask meet; the last to arrive runs fn(slots) for all of them.
template <class P, class F> static inline void warp_meet(unsigned mask, P& mine, const char* where, F fn) {
  Meet& m = meet(mask);
  m.slot[self->lane] = &mine;
  m.arrived |= 1u << self->lane;
  if (m.arrived == (mask & self->warp->lanes)) {
    m.arrived = 0;
    fn(reinterpret_cast<P**>(m.slot));
    ++m.gen;
  } else {
    wait_change(&m.gen, where);
  }
}

struct Argument { // mirrored by emulate.py
  enum Kind : unsigned { POINTER, INTEGER, REAL, STRUCT } kind;
  unsigned size; // of what it points to
  long long integer;
  double real;
  void* pointer;
};
template <class T> static inline bool fits(const Argument& a) {
  if constexpr (std::is_pointer<T>::value) return a.kind == Argument::POINTER;
  else if constexpr (std::is_floating_point<T>::value) return a.kind == Argument::REAL || a.kind == Argument::INTEGER;
  else if constexpr (std::is_integral<T>::value) return a.kind == Argument::INTEGER;
  else return a.kind == Argument::STRUCT && a.size == sizeof(T);
}
template <class T> EMU_QUIET static inline T argument(const Argument& a) {
  if constexpr (std::is_pointer<T>::value) return static_cast<T>(a.pointer);
  else if constexpr (std::is_floating_point<T>::value) return T(a.real);
  else if constexpr (std::is_integral<T>::value) return T(a.integer);
  else {
    T t;
    memcpy(&t, a.pointer, sizeof t);
    return t;
  }
}
template <class... A, size_t... I>
EMU_QUIET static inline void invoke(void (*k)(A...), Argument** args, std::index_sequence<I...>) {
  k(argument<std::remove_const_t<A>>(*args[I])...);
}
// Runs a launch; negative if the arguments are not what the kernel takes.
template <class... A> static inline int run(Launch* cfg, dim3 cluster, unsigned n_args, void (*k)(A...), void** raw) {
  Argument** args = reinterpret_cast<Argument**>(raw);
  if (n_args != sizeof...(A)) return mismatch(*cfg, n_args, sizeof...(A));
  unsigned i = 0, bad = ~0u;
  ((fits<std::remove_const_t<A>>(*args[i]) || bad != ~0u ? 0u : bad = i, ++i), ...);
  if (bad != ~0u) return mismatch(*cfg, bad);
  struct Ctx { void (*k)(A...); Argument** args; } ctx{k, args};
  return launch(*cfg, cluster, [](void* c) EMU_QUIET {
    Ctx& x = *static_cast<Ctx*>(c);
    invoke(x.k, x.args, std::index_sequence_for<A...>{});
  }, &ctx);
}
} // namespace emu
