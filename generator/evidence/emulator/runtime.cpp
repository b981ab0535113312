// Runtime of emu.h: fibers, barriers, cp.async queues, and the memory and race checker that sits behind the compiler's
// -fsanitize=thread callbacks (libtsan itself is not linked: g++ calls ours at every access of the kernel).
//
// Poison: shared memory starts as 0xff (NaN) in every block, locals as 0xfe (-ftrivial-auto-var-init=pattern).
// Races are found whatever the schedule: two accesses of one shared byte by different threads, one a write, with no block
// barrier or __syncwarp between them. Other synchronisation is not modelled: emulate.py turns the race check off for it.
#include "emu.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <deque>
#include <link.h>
#include <set>
#include <sys/mman.h>
#include <ucontext.h>
#include <unordered_map>
#include <vector>
#undef threadIdx

uint3 blockIdx;
dim3 blockDim, gridDim;
extern unsigned char __start_ks_shared[], __stop_ks_shared[];

namespace emu {
constexpr size_t STACK = 96 << 10, DYN = 232448;
alignas(1024) __attribute__((section("ks_shared"))) unsigned char dyn_smem[DYN];

struct Copy { void* dst; const void* src; unsigned bytes, live; };
struct Task { // the part of a fiber that the kernel never sees
  jmp_buf jb;
  ucontext_t uc;
  bool started, done;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  std::unordered_map<const void*, unsigned> seen; // profile: executions of each access so far
};
using Seen = uint64_t; // one access to a byte of shared memory: epoch << 32 | epoch of the warp << 10 | thread
struct Shadow { Seen last[3]; }; // by Access: last reader, writer and atomic
struct Barrier { unsigned arrived, gen; };
struct Poll { int count, all, any; };

Fiber* self;
static Fiber fibers[1024]; // static: inside the image range that touch() lets through
static Warp warps[32];
static std::vector<Task> tasks;
static const unsigned char *image, *image_end;
static unsigned char* stacks;
static size_t stacks_len;
static jmp_buf home, scheduler;
static Launch* cfg;
static void (*body)(void*);
static void* body_ctx;
static Barrier barriers[16];
static Poll poll, polled;
static unsigned live, epoch = 1; // epochs grow over all blocks and launches, so old marks never match
static std::vector<Shadow> shadow;

static bool profiles; // cfg->profile, where every access can look it up at once
bool profiling() { return profiles; }
static Task& me() { return tasks[self->rank]; }
static bool on_stack(const void* p) { return size_t(static_cast<const unsigned char*>(p) - stacks) < stacks_len; }

void fail(Fault fault, const char* fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  cfg->fault = fault;
  int n = self ? snprintf(cfg->error, sizeof cfg->error, "block (%u,%u,%u) thread %u: ", blockIdx.x, blockIdx.y, blockIdx.z, self->rank) : 0;
  vsnprintf(cfg->error + n, sizeof cfg->error - n, fmt, ap);
  va_end(ap);
  _longjmp(home, 1);
}

// ---- switching and meeting ---------------------------------------------------------------------
static void yield() {
  if (_setjmp(me().jb) == 0) _longjmp(scheduler, 1);
}
void wait_change(const unsigned* word, const char* where) {
  self->waiting = word, self->seen = *word, self->where = where;
  yield();
}
static bool barrier_full(Barrier& b, unsigned id, unsigned count) {
  if (b.arrived < (count ? count : live)) return false;
  b.arrived = 0;
  if (id == 0 && !count) polled = poll, poll = {0, 1, 0};
  if (!count) ++epoch;
  ++b.gen;
  return true;
}
void block_barrier(unsigned id, unsigned count) {
  if (id >= 16) fail(TRAP, "bar.sync %u: a block has 16 barriers", id);
  Barrier& b = barriers[id];
  ++b.arrived;
  if (!barrier_full(b, id, count)) wait_change(&b.gen, id ? "bar.sync" : "__syncthreads");
}
void named_arrive(unsigned id, unsigned count) {
  if (id >= 16) fail(TRAP, "bar.arrive %u: a block has 16 barriers", id);
  ++barriers[id].arrived;
  barrier_full(barriers[id], id, count);
}
int block_vote(int predicate, Vote vote) {
  poll.count += predicate != 0, poll.all &= predicate != 0, poll.any |= predicate != 0;
  block_barrier(0, 0);
  return vote == COUNT ? polled.count : vote == AND ? polled.all : polled.any;
}
Meet& meet(unsigned mask) {
  if (!(mask >> self->lane & 1)) fail(TRAP, "lane %u calls a warp function with mask %08x, which leaves it out", self->lane, mask);
  Meet* spare = nullptr;
  for (Meet& m : self->warp->meets) {
    if (m.mask == mask && (m.arrived || !spare)) return m;
    if (!m.arrived && !spare) spare = &m;
  }
  if (!spare) fail(TRAP, "too many warp masks in use at once");
  spare->mask = mask;
  return *spare;
}
void warp_barrier(unsigned mask) {
  int none = 0;
  warp_meet(mask, none, "__syncwarp", [](int**) {});
  ++self->warp_epoch;
}

// ---- cp.async ----------------------------------------------------------------------------------
void async_copy(void* dst, const void* src, unsigned bytes, unsigned n) {
  if (n > bytes) fail(TRAP, "cp.async: source size %u over the copy size %u", n, bytes);
  if (uintptr_t(dst) % bytes || (n && uintptr_t(src) % bytes)) fail(MISALIGNED, "cp.async: address is not %u-byte aligned", bytes);
  touch(dst, bytes, WRITE);
  if (n) touch(src, n, READ), profile(src, n, __builtin_return_address(0));
  me().open.push_back({dst, src, bytes, n});
}
void async_commit() {
  me().groups.push_back(std::move(me().open));
  me().open.clear();
}
void async_wait(unsigned pending) { // copies land as late as the program allows
  while (me().groups.size() > pending) {
    for (const Copy& c : me().groups.front()) {
      if (c.live) memcpy(c.dst, c.src, c.live);
      memset(static_cast<char*>(c.dst) + c.live, 0, c.bytes - c.live);
      touch(c.dst, c.bytes, WRITE);
    }
    me().groups.pop_front();
  }
}

// ---- profile: what the 32 lanes of a warp ask of memory with one instruction --------------------
struct Lane { uintptr_t addr; unsigned bytes; };
struct Key {
  const void* pc;
  unsigned warp, n;
  bool operator==(const Key& o) const { return pc == o.pc && warp == o.warp && n == o.n; }
};
struct Hash { size_t operator()(const Key& k) const { return reinterpret_cast<uintptr_t>(k.pc) * 31 + k.warp * 131071u + k.n * 8191u; } };
static std::unordered_map<Key, std::vector<Lane>, Hash> requests;

void count_shared(const uintptr_t* addr, unsigned lanes, unsigned bytes) { // bank conflicts, 32 banks of 4 bytes
  const unsigned per = std::max(1u, std::min(32u, 128u / bytes));
  for (unsigned first = 0; first < lanes; first += per) {
    std::set<uintptr_t> words[32];
    for (unsigned i = first; i < std::min(lanes, first + per); ++i)
      for (uintptr_t w = addr[i] / 4; w <= (addr[i] + bytes - 1) / 4; ++w) words[w % 32].insert(w);
    size_t ways = 0;
    for (auto& b : words) ways = std::max(ways, b.size());
    cfg->stats[3] += 1, cfg->stats[4] += double(ways); // ideal and actual wavefronts
  }
}
static bool is_shared(const unsigned char* a) { return a >= __start_ks_shared && a < __stop_ks_shared; }
static void flush(const std::vector<Lane>& lanes) {
  if (is_shared(reinterpret_cast<const unsigned char*>(lanes[0].addr))) {
    std::vector<uintptr_t> a;
    for (const Lane& l : lanes) a.push_back(l.addr - uintptr_t(__start_ks_shared));
    count_shared(a.data(), unsigned(a.size()), lanes[0].bytes);
    return;
  }
  std::set<uintptr_t> sectors;
  for (const Lane& l : lanes)
    for (uintptr_t s = l.addr / 32; s <= (l.addr + l.bytes - 1) / 32; ++s) sectors.insert(s);
  cfg->stats[0] += 1, cfg->stats[1] += double(sectors.size());
  for (const Lane& l : lanes) cfg->stats[2] += l.bytes;
}
void profile(const void* p, unsigned bytes, const void* pc) {
  if (!self || !profiles) return;
  const unsigned char* a = static_cast<const unsigned char*>(p);
  if (on_stack(p) || (a >= image && a < image_end && !is_shared(a))) return;
  const Key key{pc, self->rank / 32, me().seen[pc]++};
  auto& lanes = requests[key];
  lanes.push_back({uintptr_t(p), bytes});
  if (lanes.size() == 32) flush(lanes), requests.erase(key);
}

// ---- checks ------------------------------------------------------------------------------------
unsigned shared_offset(const void* p) { return unsigned(static_cast<const unsigned char*>(p) - __start_ks_shared); }
void* shared_ptr(unsigned offset, unsigned bytes) {
  if (size_t(offset) + bytes > size_t(__stop_ks_shared - __start_ks_shared)) fail(BOUNDS, "shared address %u is out of range", offset);
  return __start_ks_shared + offset;
}
void aligned(const void* p, unsigned bytes) {
  if (self && uintptr_t(p) % bytes) fail(MISALIGNED, "misaligned %u-byte access", bytes);
}
static bool unordered(Seen before, Seen now) {
  if (before >> 32 != now >> 32 || ((before ^ now) & 1023) == 0) return false; // a barrier between, or the same thread
  return (before ^ now) & 992 || uint32_t(before) >> 10 >= uint32_t(now) >> 10; // another warp, or no __syncwarp between
}
static void check_race(const unsigned char* a, unsigned bytes, Access kind) {
  static const char* const verb[] = {"read", "write", "atomic"};
  const Seen now = Seen(epoch) << 32 | (self->warp_epoch & 0x3fffff) << 10 | self->rank;
  Shadow* s = &shadow[a - __start_ks_shared];
  for (unsigned i = 0; i < bytes; ++i, ++s) {
    for (int other = READ; other <= ATOMIC; ++other)
      if (unordered(s->last[other], now) && (kind != other || kind == WRITE))
        fail(RACE, "shared-memory race: %s of byte %u with no barrier after thread %u's %s", verb[kind], shared_offset(a) + i,
             unsigned(s->last[other] & 1023), verb[other]);
    s->last[kind] = now;
  }
}
void touch(const void* p, unsigned bytes, Access kind) {
  const unsigned char* a = static_cast<const unsigned char*>(p);
  if (!self || on_stack(p)) return;
  if (is_shared(a)) {
    if (a >= dyn_smem && a < dyn_smem + DYN && a + bytes > dyn_smem + cfg->smem)
      fail(BOUNDS, "dynamic shared memory %s at byte %u, past the %u launched", kind ? "write" : "read", unsigned(a - dyn_smem), cfg->smem);
    if (cfg->race_check) check_race(a, bytes, kind);
    return;
  }
  if (a >= image && a < image_end) return;
  for (unsigned i = 0; i < cfg->n_ranges; ++i)
    if (a >= cfg->ranges[2 * i] && a + bytes <= cfg->ranges[2 * i + 1]) return;
  fail(BOUNDS, "out-of-bounds global %s of %u bytes", kind ? "write" : "read", bytes);
}
} // namespace emu
#include "hopper.cpp"

// ---- blocks ------------------------------------------------------------------------------------
namespace emu {
static void entry() {
  body(body_ctx);
  Task& t = me();
  if (!t.groups.empty() || !t.open.empty()) async_commit(), async_wait(0);
  t.done = true;
  --live;
  if (live && barriers[0].arrived >= live) barrier_full(barriers[0], 0, 0); // exited threads no longer count
  _longjmp(scheduler, 1);
}
static void start_block(unsigned threads) {
  memset(dyn_smem, 0xff, cfg->smem);
  memset(__start_ks_shared, 0xff, dyn_smem - __start_ks_shared);
  memset(dyn_smem + DYN, 0xff, __stop_ks_shared - (dyn_smem + DYN));
  memset(barriers, 0, sizeof barriers);
  memset(warps, 0, sizeof warps);
  hopper_reset();
  poll = {0, 1, 0};
  live = threads, ++epoch;
  for (unsigned i = 0; i < threads; ++i) {
    Task& t = tasks[i];
    const uint3 tid = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    fibers[i] = Fiber{tid, i, i % 32, 1, &warps[i / 32], nullptr, 0, ""};
    warps[i / 32].lanes |= 1u << i % 32;
    t.started = t.done = false;
    t.open.clear(), t.groups.clear(), t.seen.clear();
  }
}
static void resume(unsigned i) {
  Task& t = tasks[i];
  self = &fibers[i];
  if (_setjmp(scheduler)) return;
  if (t.started) _longjmp(t.jb, 1);
  t.started = true;
  getcontext(&t.uc);
  t.uc.uc_stack.ss_sp = stacks + i * STACK;
  t.uc.uc_stack.ss_size = STACK;
  makecontext(&t.uc, entry, 0);
  setcontext(&t.uc);
}
static unsigned nth(unsigned n, unsigned threads) { // the thread orders: forward, backward, shuffled
  return cfg->order == 1 ? threads - 1 - n : cfg->order == 2 ? (n * 37u + 11u) % threads : n;
}
static void run_block(unsigned threads) {
  start_block(threads);
  while (live) {
    bool ran = false;
    for (unsigned n = 0; n < threads; ++n) {
      const unsigned i = nth(n, threads);
      Fiber& f = fibers[i];
      if (tasks[i].done || (f.waiting && *f.waiting == f.seen)) continue;
      f.waiting = nullptr;
      ran = true;
      resume(i);
    }
    if (ran || run_loads()) continue;
    for (unsigned n = 0; n < threads; ++n)
      if (!tasks[n].done) {
        self = &fibers[n];
        fail(DEADLOCK, "deadlock: %u of %u threads have not finished, this one waits in %s", live, threads, self->where);
      }
  }
  for (auto& r : requests) flush(r.second);
  requests.clear();
  self = nullptr;
}
static void find_image() { // the range of this library, whose statics and constants a kernel may touch
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void*) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& h = info->dlpi_phdr[i];
      const unsigned char* at = reinterpret_cast<unsigned char*>(info->dlpi_addr + h.p_vaddr);
      if (h.p_type == PT_LOAD && at <= __start_ks_shared && __start_ks_shared < at + h.p_memsz) {
        image = reinterpret_cast<unsigned char*>(info->dlpi_addr);
        image_end = at + h.p_memsz;
      }
    }
    return 0;
  }, nullptr);
}
int mismatch(Launch& c, unsigned given, unsigned taken) {
  snprintf(c.error, sizeof c.error, "the launch passes %u arguments, the kernel takes %u", given, taken);
  return -1;
}
int mismatch(Launch& c, unsigned argument) {
  snprintf(c.error, sizeof c.error, "argument %u of the launch is of another kind (pointer, integer, real, tensor map) than the kernel takes", argument);
  return -1;
}
int launch(Launch& c, void (*b)(void*), void* ctx) {
  cfg = &c, body = b, body_ctx = ctx, self = nullptr, profiles = c.profile;
  c.error[0] = 0, c.fault = NONE;
  gridDim = {c.grid[0], c.grid[1], c.grid[2]}, blockDim = {c.block[0], c.block[1], c.block[2]};
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (threads == 0 || threads > 1024 || c.smem > DYN || !gridDim.x || !gridDim.y || !gridDim.z || gridDim.y > 65535 || gridDim.z > 65535) {
    c.fault = TRAP;
    snprintf(c.error, sizeof c.error, "invalid launch configuration");
    return 1;
  }
  stacks_len = threads * STACK;
  stacks = static_cast<unsigned char*>(mmap(nullptr, stacks_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  tasks = std::vector<Task>(threads);
  shadow.resize(c.race_check ? __stop_ks_shared - __start_ks_shared : 0);
  find_image();
  const int failed = _setjmp(home);
  if (!failed)
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block(threads);
  self = nullptr;
  munmap(stacks, stacks_len);
  return failed;
}
static inline void access(const void* p, unsigned bytes, Access kind, bool check, const void* pc) {
  if (check) aligned(p, bytes);
  if (on_stack(p)) return;
  touch(p, bytes, kind);
  if (profiles) profile(p, bytes, pc);
}
} // namespace emu

// ---- what the compiler calls at every memory access of an instrumented kernel -------------------
extern "C" {
// The "unaligned" forms are accesses whose type promises less alignment than its size; the others promise it.
#define ACCESS(name, n, kind, check)                                                  \
  void __tsan_##name##n(void* p) { emu::access(p, n, kind, check, __builtin_return_address(0)); }
#define HOOK(n)                                                                       \
  ACCESS(read, n, emu::READ, true) ACCESS(write, n, emu::WRITE, true)                 \
  ACCESS(unaligned_read, n, emu::READ, false) ACCESS(unaligned_write, n, emu::WRITE, false)
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
void __tsan_read_range(void* p, unsigned long n) { emu::access(p, unsigned(n), emu::READ, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, unsigned long n) { emu::access(p, unsigned(n), emu::WRITE, false, __builtin_return_address(0)); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
