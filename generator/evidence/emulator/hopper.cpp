// Runtime of hopper.h; runtime.cpp includes it.
#include "emu.h"
#include <deque>
#include <map>
#include <vector>

namespace emu {
struct Mbar { int count, pending; long tx; unsigned phase; };
struct Load { // one bulk copy on its way; a plain one has map.base = 0
  unsigned dst;
  TensorMap map;
  int x, y;
  const void* src;
  unsigned bytes, bar;
};
struct Store { TensorMap map; int x, y; unsigned src; };
struct Product { In in; std::vector<void*> d; uint64_t a, b; int accumulate; };
struct Group { unsigned arrived, gen, pending; };
static std::map<unsigned, Mbar> mbars;
static std::deque<Load> loads;
static std::deque<std::vector<Store>> store_groups[1024];
static std::vector<Store> store_open[1024];
static std::deque<std::vector<Product>> wg_groups[1024];
static std::vector<Product> wg_open[1024];
static Group warpgroups[8];

static void hopper_reset() {
  mbars.clear(), loads.clear();
  for (auto& q : store_groups) q.clear();
  for (auto& q : store_open) q.clear();
  for (auto& q : wg_groups) q.clear();
  for (auto& q : wg_open) q.clear();
  memset(warpgroups, 0, sizeof warpgroups);
}

static void alone(const char* what) {
  if (cluster.size > 1) fail(TRAP, "%s in a cluster of several blocks is not emulated", what);
}

// ---- mbarrier ----------------------------------------------------------------------------------
static Mbar& mbar(unsigned addr) {
  auto it = mbars.find(addr);
  if (it == mbars.end()) fail(TRAP, "mbarrier at %u was never initialised", addr);
  return it->second;
}
static void settle(Mbar& b) {
  if (b.pending < 0) fail(TRAP, "mbarrier: more arrivals than its count of %d", b.count);
  if (b.pending == 0 && b.tx == 0) b.pending = b.count, ++b.phase;
}
unsigned* mbar_phase(unsigned addr) { return &mbar(addr).phase; }
void mbar_init(unsigned addr, int count) {
  alone("mbarrier");
  if (addr % 8) fail(MISALIGNED, "mbarrier: address is not 8-byte aligned");
  mbars[addr] = {count, count, 0, 0};
}
void mbar_arrive(unsigned addr, int count, int tx) {
  Mbar& b = mbar(addr);
  b.tx += tx;
  b.pending -= count;
  settle(b);
}

// ---- bulk copies -------------------------------------------------------------------------------
static unsigned swizzled(unsigned a, unsigned bits = 3) { return a ^ ((a >> 7 & ((1u << bits) - 1)) << 4); }

void bulk_load(unsigned dst, const void* src, unsigned bytes, unsigned bar) {
  if (dst % 16 || uintptr_t(src) % 16 || bytes % 16) fail(MISALIGNED, "cp.async.bulk: addresses and size must be multiples of 16 bytes");
  loads.push_back({dst, {}, 0, 0, src, bytes, bar});
}
static void check_box(const TensorMap& m, unsigned at) {
  if (at % (m.swizzle ? 1024 : 128))
    fail(MISALIGNED, "TMA: a tile in shared memory must be %d-byte aligned", m.swizzle ? 1024 : 128);
  if (m.swizzle && m.box_x * m.elem_bytes > 128) fail(TRAP, "TMA: inner box is wider than the swizzle span");
  if (m.box_x > 256 || m.box_y > 256) fail(TRAP, "TMA: box dimension over 256");
  if (m.box_x * m.elem_bytes % 16 || m.row_bytes % 16) fail(TRAP, "TMA: inner box and row pitch must be multiples of 16 bytes");
}
void tma_load(unsigned dst, const TensorMap* map, int x, int y, unsigned bar) {
  check_box(*map, dst);
  loads.push_back({dst, *map, x, y, nullptr, map->box_x * map->box_y * map->elem_bytes, bar});
}
static char* element(const TensorMap& m, uint64_t x, uint64_t y) { // null outside the tensor
  return x < m.width && y < m.height ? reinterpret_cast<char*>(m.base) + y * m.row_bytes + x * m.elem_bytes : nullptr;
}
static void* tile(const TensorMap& m, unsigned base, unsigned x, unsigned y) {
  const unsigned at = base + (y * m.box_x + x) * m.elem_bytes;
  return shared_ptr(m.swizzle ? swizzled(at) : at, m.elem_bytes);
}
static bool run_loads() { // called when no thread can run
  if (loads.empty()) return false;
  const Load l = loads.front();
  loads.pop_front();
  const TensorMap& m = l.map;
  if (l.src) touch(l.src, l.bytes, READ), memcpy(shared_ptr(l.dst, l.bytes), l.src, l.bytes);
  for (unsigned y = 0; y < m.box_y; ++y)
    for (unsigned x = 0; x < m.box_x; ++x) {
      void* dst = tile(m, l.dst, x, y);
      if (const char* src = element(m, l.x + x, l.y + y)) memcpy(dst, src, m.elem_bytes);
      else memset(dst, 0, m.elem_bytes);
    }
  Mbar& b = mbar(l.bar);
  b.tx -= long(l.bytes);
  settle(b);
  return true;
}
void tma_store(const TensorMap* map, int x, int y, unsigned src) {
  alone("TMA");
  check_box(*map, src);
  store_open[self->rank].push_back({*map, x, y, src});
}
void bulk_commit() {
  store_groups[self->rank].push_back(std::move(store_open[self->rank]));
  store_open[self->rank].clear();
}
void bulk_wait(unsigned pending) {
  auto& groups = store_groups[self->rank];
  for (; groups.size() > pending; groups.pop_front())
    for (const Store& s : groups.front())
      for (unsigned y = 0; y < s.map.box_y; ++y)
        for (unsigned x = 0; x < s.map.box_x; ++x)
          if (char* dst = element(s.map, s.x + x, s.y + y)) memcpy(dst, tile(s.map, s.src, x, y), s.map.elem_bytes);
}

// ---- wgmma -------------------------------------------------------------------------------------
void wgmma_issue(In in, void* const* d, unsigned regs, uint64_t a, uint64_t b, int accumulate) {
  alone("wgmma");
  wg_open[self->rank].push_back({in, std::vector<void*>(d, d + regs), a, b, accumulate});
}
void wgmma_commit() {
  wg_groups[self->rank].push_back(std::move(wg_open[self->rank]));
  wg_open[self->rank].clear();
}

// Byte `k` (0 to 31) of row `row` of a K-major operand. Rows come in groups of 8, `stride` bytes from group to group; within one, a
// row follows the next at the width of the swizzle span, or at 16 bytes where there is no swizzle (then `lead` goes along K).
static const void* operand(uint64_t desc, int row, unsigned k, unsigned bytes) {
  const unsigned start = unsigned(desc & 0x3fff) << 4, lead = unsigned(desc >> 16 & 0x3fff) << 4, stride = unsigned(desc >> 32 & 0x3fff) << 4;
  const unsigned group = start + row / 8 * stride;
  switch (desc >> 62) {
    case 1: return shared_ptr(swizzled(group + row % 8 * 128 + k, 3), bytes);
    case 2: return shared_ptr(swizzled(group + row % 8 * 64 + k, 2), bytes);
    case 3: return shared_ptr(swizzled(group + row % 8 * 32 + k, 1), bytes);
    default: return shared_ptr(group + k / 16 * lead + row % 8 * 16 + k % 16, bytes);
  }
}
static float value(In in, uint64_t desc, int row, int k) {
  if (in == In::F16) return Fp16::decode(*static_cast<const uint16_t*>(operand(desc, row, k * 2, 2)));
  if (in == In::BF16) return Bf16::decode(*static_cast<const uint16_t*>(operand(desc, row, k * 2, 2)));
  const uint8_t b = *static_cast<const uint8_t*>(operand(desc, row, k, 1));
  return in == In::E4M3 ? fp8_decode<E4M3>(b) : float(int8_t(b));
}
static void execute(unsigned first, size_t g) {
  auto& lead = wg_groups[first][g];
  for (size_t i = 0; i < lead.size(); ++i) {
    const In in = lead[i].in;
    const int N = int(lead[i].d.size()) * 2, K = in == In::F16 || in == In::BF16 ? 16 : 32;
    std::vector<float> A(64 * K), B(N * K), D(64 * N); // sums of 32 s8 products are exact in a float
    for (int r = 0; r < 64; ++r)
      for (int k = 0; k < K; ++k) A[r * K + k] = value(in, lead[i].a, r, k);
    for (int c = 0; c < N; ++c)
      for (int k = 0; k < K; ++k) B[c * K + k] = value(in, lead[i].b, c, k);
    for (int r = 0; r < 64; ++r)
      for (int c = 0; c < N; ++c) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += A[r * K + k] * B[c * K + k];
        D[r * N + c] = sum;
      }
    for (int t = 0; t < 128; ++t) {
      if (wg_groups[first + t].size() <= g || wg_groups[first + t][g].size() <= i) fail(TRAP, "wgmma: threads of a warpgroup issue different work");
      Product& p = wg_groups[first + t][g][i];
      if (p.a != lead[i].a || p.b != lead[i].b) fail(TRAP, "wgmma: descriptors differ within a warpgroup");
      for (int j = 0; j < N / 2; ++j) {
        const int row = t / 32 * 16 + t % 32 / 4 + j / 2 % 2 * 8, col = j / 4 * 8 + t % 4 * 2 + j % 2;
        const float sum = D[row * N + col];
        if (in == In::S8) *static_cast<int*>(p.d[j]) = (p.accumulate ? *static_cast<int*>(p.d[j]) : 0) + int(sum);
        else *static_cast<float*>(p.d[j]) = (p.accumulate ? *static_cast<float*>(p.d[j]) : 0.0f) + sum;
      }
    }
  }
}
void wgmma_wait(unsigned pending) {
  Group& wg = warpgroups[self->rank / 128];
  if (++wg.arrived < 128) return wait_change(&wg.gen, "wgmma.wait_group");
  const unsigned first = self->rank / 128 * 128;
  const size_t n = wg_groups[first].size();
  for (size_t g = 0; g + pending < n; ++g) execute(first, g);
  for (unsigned t = 0; t < 128; ++t)
    while (wg_groups[first + t].size() > pending) wg_groups[first + t].pop_front();
  wg.arrived = 0;
  ++wg.gen;
}
} // namespace emu
