// Runtime of emu.h: fibers, barriers, cp.async queues, and the memory and race checker that sits behind the compiler's
// -fsanitize=thread callbacks (libtsan itself is not linked: g++ calls ours at every access of the kernel).
//
// Poison: shared memory starts as 0xff (NaN) in every block, locals as 0xfe (-ftrivial-auto-var-init=pattern).
// Races are found whatever the schedule: two accesses of one shared byte by different threads, one a write, with no block
// barrier, cluster barrier or __syncwarp between them. Other synchronisation is not modelled: emulate.py turns the race
// check off for it.
//
// The blocks of a cluster run together, each with a shared memory of its own. The kernel's variables exist once, so the
// block that runs has its bytes there and the others' are kept aside: enter() swaps them. Races between blocks are found
// likewise, but not those of two threads of one block on the memory of another.
#include "emu.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
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
struct Far { unsigned arrived, block; }; // one access as the cluster sees it
struct FarShadow { Far last[3]; };
struct Barrier { unsigned arrived, gen; };
struct Poll { int count, all, any; };
struct Block {
  uint3 index;
  unsigned live, epoch;
  unsigned waited, lent; // barriers of the cluster: waits of the latest thread, arrivals of the latest access from another block
  Barrier barriers[16];
  Poll poll, polled;
  Warp warps[32];
  unsigned char* aside; // its shared memory while another block of the cluster runs
  Shadow* shadow;
  FarShadow* far;
};
struct Cluster { unsigned size, live, arrived, phase, first; }; // first: the phase it began in

constexpr unsigned MAX_CLUSTER = 8; // blocks, the greatest portable size
Fiber* self;
static Fiber fibers[MAX_CLUSTER * 1024]; // static, as are the blocks: inside the image range that touch() lets through
static Block blocks[MAX_CLUSTER], *here; // here: the block that runs
static Cluster cluster;
static std::vector<Task> tasks;
static const unsigned char *image, *image_end;
static unsigned char* stacks;
static size_t stacks_len;
static jmp_buf home, scheduler;
static Launch* cfg;
static void (*body)(void*);
static void* body_ctx;
static unsigned epoch = 1; // epochs and phases grow over all blocks and launches, so old marks never match

static bool profiles; // cfg->profile, where every access can look it up at once
bool profiling() { return profiles; }
static Task& me() { return tasks[self - fibers]; }
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
  if (b.arrived < (count ? count : here->live)) return false;
  b.arrived = 0;
  if (id == 0 && !count) here->polled = here->poll, here->poll = {0, 1, 0};
  if (!count) here->epoch = ++epoch;
  ++b.gen;
  return true;
}
void block_barrier(unsigned id, unsigned count) {
  if (id >= 16) fail(TRAP, "bar.sync %u: a block has 16 barriers", id);
  Barrier& b = here->barriers[id];
  ++b.arrived;
  if (!barrier_full(b, id, count)) wait_change(&b.gen, id ? "bar.sync" : "__syncthreads");
}
void named_arrive(unsigned id, unsigned count) {
  if (id >= 16) fail(TRAP, "bar.arrive %u: a block has 16 barriers", id);
  ++here->barriers[id].arrived;
  barrier_full(here->barriers[id], id, count);
}
int block_vote(int predicate, Vote vote) {
  Poll &poll = here->poll, &polled = here->polled;
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
  const Key key{pc, unsigned(self->warp - here->warps + 32 * (here - blocks)), me().seen[pc]++};
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
static const char* const verb[] = {"read", "write", "atomic"};
static void check_race(const Block& of, unsigned offset, unsigned bytes, Access kind) {
  const Seen now = Seen(here->epoch) << 32 | (self->warp_epoch & 0x3fffff) << 10 | self->rank;
  Shadow* s = of.shadow + offset;
  for (unsigned i = 0; i < bytes; ++i, ++s) {
    for (int other = READ; other <= ATOMIC; ++other)
      if (unordered(s->last[other], now) && (kind != other || kind == WRITE))
        fail(RACE, "shared-memory race: %s of byte %u with no barrier after thread %u's %s", verb[kind], offset + i,
             unsigned(s->last[other] & 1023), verb[other]);
    s->last[kind] = now;
  }
}
// Between blocks of a cluster; out of line, as it costs single blocks a quarter of their speed otherwise.
__attribute__((noinline)) static void check_far_race(const Block& of, unsigned offset, unsigned bytes, Access kind) {
  FarShadow* s = of.far + offset;
  for (unsigned i = 0; i < bytes; ++i, ++s) {
    for (int other = READ; other <= ATOMIC; ++other) {
      const Far& before = s->last[other];
      if (before.block != cluster_rank() && before.arrived >= self->waited && (kind != other || kind == WRITE))
        fail(RACE, "shared-memory race: %s of byte %u of block %u of the cluster with no barrier.cluster after block %u's %s", verb[kind], offset + i,
             unsigned(&of - blocks), before.block, verb[other]);
    }
    s->last[kind] = {self->arrived, cluster_rank()};
  }
}
static inline void check_shared(const Block& of, unsigned offset, unsigned bytes, Access kind) {
  const unsigned dynamic = shared_offset(dyn_smem);
  if (offset >= dynamic && offset < dynamic + DYN && offset + bytes > dynamic + cfg->smem)
    fail(BOUNDS, "dynamic shared memory %s at byte %u, past the %u launched", kind ? "write" : "read", offset - dynamic, cfg->smem);
  if (!cfg->race_check) return;
  if (cluster.size > 1) check_far_race(of, offset, bytes, kind);
  if (&of == here) check_race(of, offset, bytes, kind);
}
void touch(const void* p, unsigned bytes, Access kind) {
  const unsigned char* a = static_cast<const unsigned char*>(p);
  if (!self || on_stack(p)) return;
  if (is_shared(a)) return check_shared(*here, shared_offset(a), bytes, kind);
  if (a >= image && a < image_end) return;
  for (unsigned i = 0; i < cfg->n_ranges; ++i)
    if (a >= cfg->ranges[2 * i] && a + bytes <= cfg->ranges[2 * i + 1]) return;
  fail(BOUNDS, "out-of-bounds global %s of %u bytes", kind ? "write" : "read", bytes);
}

// ---- clusters ----------------------------------------------------------------------------------
// A mapped address is an offset with the block's rank + 1 in its upper byte; 0 there is the block itself.
unsigned cluster_rank() { return unsigned(here - blocks); }
unsigned cluster_size() { return cluster.size; }
static void cluster_full() {
  if (cluster.arrived < cluster.live) return;
  cluster.arrived = 0, ++cluster.phase;
  for (Block& b : blocks) b.epoch = ++epoch;
}
void cluster_arrive() { // .relaxed counts as .release
  if (self->arrived != self->waited) fail(TRAP, "barrier.cluster.arrive twice without a wait");
  ++self->arrived, ++cluster.arrived;
  cluster_full();
}
void cluster_wait() {
  if (self->arrived == self->waited) fail(TRAP, "barrier.cluster.wait without an arrive");
  if (cluster.phase == self->waited) wait_change(&cluster.phase, "barrier.cluster.wait");
  ++self->waited;
  here->waited = std::max(here->waited, self->waited);
}
unsigned map_shared(unsigned offset, unsigned rank) {
  if (rank >= cluster.size) fail(BOUNDS, "mapa: no block %u in a cluster of %u", rank, cluster.size);
  return (rank + 1) << 24 | offset;
}
void* cluster_ptr(unsigned mapped, unsigned bytes, Access kind) {
  const unsigned rank = mapped >> 24 ? (mapped >> 24) - 1 : cluster_rank(), offset = mapped & 0xffffff;
  if (rank >= cluster.size) fail(BOUNDS, "shared::cluster address %#x is out of range", mapped);
  unsigned char* const local = static_cast<unsigned char*>(shared_ptr(offset, bytes));
  aligned(local, bytes);
  Block& of = blocks[rank];
  check_shared(of, offset, bytes, kind);
  if (&of == here) return local;
  if (!of.live) fail(BOUNDS, "%s of shared memory of block %u of the cluster, which has exited", verb[kind], rank);
  if (self->waited == cluster.first) fail(RACE, "%s of shared memory of block %u of the cluster with no barrier.cluster after its start", verb[kind], rank);
  of.lent = std::max(of.lent, self->arrived);
  return &of.aside[offset];
}
template <class F> static void each_part(F f) { // the shared memory that a launch uses: begin, bytes
  f(__start_ks_shared, dyn_smem - __start_ks_shared), f(dyn_smem, cfg->smem), f(dyn_smem + DYN, __stop_ks_shared - (dyn_smem + DYN));
}
template <class T> static void reserve(T*& of) { // one for each byte of shared memory, zero; only what is used becomes real
  if (!of) of = static_cast<T*>(calloc(shared_offset(__stop_ks_shared), sizeof(T)));
}
static void enter(Block& b) {
  blockIdx = b.index;
  if (&b == here) return;
  each_part([](unsigned char* p, size_t n) { memcpy(&here->aside[shared_offset(p)], p, n); });
  here = &b;
  each_part([](unsigned char* p, size_t n) { memcpy(p, &here->aside[shared_offset(p)], n); });
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
  --here->live, --cluster.live;
  if (here->live && here->barriers[0].arrived >= here->live) barrier_full(here->barriers[0], 0, 0); // exited threads no longer count
  if (self->arrived > cluster.phase) --cluster.arrived;
  if (cluster.live) cluster_full();
  if (!here->live && here->lent >= here->waited)
    fail(BOUNDS, "block %u of the cluster exits with no barrier.cluster after an access to its shared memory by another", cluster_rank());
  _longjmp(scheduler, 1);
}
static void start_block(unsigned threads) {
  each_part([](unsigned char* p, size_t n) { memset(p, 0xff, n); });
  memset(here->barriers, 0, sizeof here->barriers);
  memset(here->warps, 0, sizeof here->warps);
  here->poll = {0, 1, 0};
  here->live = threads, here->epoch = ++epoch;
  here->waited = cluster.phase, here->lent = 0;
  for (unsigned i = 0; i < threads; ++i) {
    const size_t n = cluster_rank() * threads + i;
    Task& t = tasks[n];
    const uint3 tid = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    fibers[n] = Fiber{tid, i, i % 32, 1, &here->warps[i / 32], nullptr, 0, "", cluster.phase, cluster.phase};
    here->warps[i / 32].lanes |= 1u << i % 32;
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
static void run_cluster(uint3 at, dim3 size, unsigned threads) {
  cluster.live = cluster.size * threads, cluster.arrived = 0, cluster.first = ++cluster.phase;
  hopper_reset();
  for (unsigned b = 0; b < cluster.size; ++b) {
    blocks[b].index = {at.x + b % size.x, at.y + b / size.x % size.y, at.z + b / (size.x * size.y)};
    enter(blocks[b]);
    start_block(threads);
  }
  while (cluster.live) {
    bool ran = false;
    for (unsigned b = 0; b < cluster.size; ++b)
      for (unsigned n = 0; n < threads; ++n) {
        const unsigned rank = cfg->order == 1 ? cluster.size - 1 - b : b, i = rank * threads + nth(n, threads);
        Fiber& f = fibers[i];
        if (tasks[i].done || (f.waiting && *f.waiting == f.seen)) continue;
        f.waiting = nullptr;
        ran = true;
        enter(blocks[rank]);
        resume(i);
      }
    if (ran || run_loads()) continue;
    for (unsigned n = 0; n < cluster.size * threads; ++n)
      if (!tasks[n].done) {
        enter(blocks[n / threads]);
        self = &fibers[n];
        fail(DEADLOCK, "deadlock: %u of %u threads have not finished, this one waits in %s", here->live, threads, self->where);
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
int launch(Launch& c, dim3 size, void (*b)(void*), void* ctx) {
  cfg = &c, body = b, body_ctx = ctx, self = nullptr, profiles = c.profile;
  c.error[0] = 0, c.fault = NONE;
  gridDim = {c.grid[0], c.grid[1], c.grid[2]}, blockDim = {c.block[0], c.block[1], c.block[2]};
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  cluster.size = size.x * size.y * size.z;
  const bool whole = cluster.size && gridDim.x % size.x == 0 && gridDim.y % size.y == 0 && gridDim.z % size.z == 0;
  if (threads == 0 || threads > 1024 || c.smem > DYN || !gridDim.x || !gridDim.y || !gridDim.z || gridDim.y > 65535 || gridDim.z > 65535 ||
      cluster.size > MAX_CLUSTER || !whole) {
    c.fault = TRAP;
    snprintf(c.error, sizeof c.error, "invalid launch configuration%s", whole ? "" : ": the grid is no multiple of the cluster");
    return 1;
  }
  stacks_len = cluster.size * threads * STACK;
  stacks = static_cast<unsigned char*>(mmap(nullptr, stacks_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  tasks = std::vector<Task>(cluster.size * threads);
  here = blocks;
  for (unsigned i = 0; i < cluster.size; ++i) reserve(blocks[i].shadow), reserve(blocks[i].far), reserve(blocks[i].aside);
  find_image();
  const int failed = _setjmp(home);
  if (!failed)
    for (unsigned z = 0; z < gridDim.z; z += size.z)
      for (unsigned y = 0; y < gridDim.y; y += size.y)
        for (unsigned x = 0; x < gridDim.x; x += size.x) run_cluster({x, y, z}, size, threads);
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
