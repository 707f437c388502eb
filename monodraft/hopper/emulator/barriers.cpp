// mbarriers, bulk copies that complete on them, cp.async, named barriers of a CTA, dependent launches.
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace emulator {

// An mbarrier as it lies in its 8 bytes of shared memory.
struct Phase {
  u16 expected;   // arrivals of a phase
  u16 parity : 1, pending : 15;
  int bytes;      // expected and not landed
};
static_assert(sizeof(Phase) == 8);

static Phase& phase_at(u32 bar, const char* word) {
  Phase& p = *reinterpret_cast<Phase*>(shared_memory(bar, 8, word));
  if (!p.expected || p.expected == UNWRITTEN * 257u) fail("%s: no mbarrier was initialised at %#x", word, bar);
  return p;
}

static void complete_if_done(Cta& own, Phase& p, u32 bar) {
  if (p.pending || p.bytes) return;
  p.parity ^= 1u, p.pending = p.expected;
  something_happened();
  if (RACES) move_clocks(own.phases[bar].gathered, own.phases[bar].done);
  std::vector<Lane*> others;
  for (Lane* lane : own.phase_waiters) {
    if (lane->wanted >> 1 == bar) wake(lane);
    else others.push_back(lane);
  }
  own.phase_waiters.swap(others);
}

static void arrive(Phase& p, u32 bar, const char* word) {
  if (!p.pending) fail("%s: more arrivals at mbarrier %#x than its phase has", word, bar);
  p.pending--;
  something_happened();
  if (RACES) release_into(cta().phases[bar].gathered);
  complete_if_done(cta(), p, bar);
}

void phase_init(u32 bar, u32 arrivals) {
  touch();
  Phase& p = *reinterpret_cast<Phase*>(shared_memory(bar, 8, "phase_init"));
  if (!arrivals || arrivals >= 1u << 15) fail("phase_init: %u arrivals", arrivals);
  p.expected = u16(arrivals), p.parity = 0, p.pending = arrivals, p.bytes = 0;
}

void phase_expect(u32 bar, u32 bytes) {
  touch();
  Phase& p = phase_at(bar, "phase_expect");
  p.bytes += int(bytes);
  arrive(p, bar, "phase_expect");
}

void phase_arrive(u32 bar) {
  touch();
  arrive(phase_at(bar, "phase_arrive"), bar, "phase_arrive");
}

// As the hardware's parity test: is the phase of this parity over?
bool phase_done(u32 bar, u32 parity) {
  if (phase_at(bar, "phase_try").parity == (parity & 1u)) return false;
  if (RACES) acquire_from(cta().phases[bar].done);
  return true;
}

// ---- bulk copies: one lands at a seeded later time, its source read either at once or only then
struct Bulk {
  u64 due, order;
  Cta* owner;
  u32 bar;
  u8* to;
  const u8* from;
  u32 bytes, number;
  std::vector<u8> early;
};
static std::vector<Bulk> flying;
static u64 bulk_order = 0;

static bool later(const Bulk& a, const Bulk& b) { return a.due != b.due ? a.due > b.due : a.order > b.order; }

void bulk_copy(u32 shared, const void* global, u32 bytes, u32 bar) {
  touch();
  phase_at(bar, "bulk_copy");
  if (bytes % 16 || !bytes) fail("bulk_copy: %u bytes, not a multiple of 16", bytes);
  if (shared % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    fail("bulk_copy: %#x from %p, not multiples of 16", shared, global);
  const u32 wait = seeded() ? (random_below(4) ? random_below(64) : random_below(4096)) : 8;
  Bulk copy = {clock_now() + wait, bulk_order++, &cta(), bar, shared_memory(shared, bytes, "bulk_copy"),
               static_cast<const u8*>(global), bytes, 0, {}};
  copy.number = bulk_accesses(cta(), copy.to, copy.from, bytes, __builtin_return_address(0));
  if (seeded() && random_below(2)) copy.early.assign(copy.from, copy.from + bytes);
  cta().flying++;
  flying.push_back(std::move(copy));
  std::push_heap(flying.begin(), flying.end(), later);
  something_happened();
}

// Lands what is due, or the next one where nothing else can happen. False where there was none.
bool land_due_copies(bool all_idle) {
  bool landed = false;
  while (!flying.empty() && (flying.front().due <= clock_now() || (all_idle && !landed))) {
    std::pop_heap(flying.begin(), flying.end(), later);
    Bulk copy = std::move(flying.back());
    flying.pop_back();
    std::memcpy(copy.to, copy.early.empty() ? copy.from : copy.early.data(), copy.bytes);
    Phase& p = *reinterpret_cast<Phase*>(copy.owner->shared + (copy.bar - SHARED_BASE));
    p.bytes -= int(copy.bytes);
    copy.owner->flying--;
    if (RACES) bulk_landed(*copy.owner, copy.owner->phases[copy.bar].gathered, copy.number);
    complete_if_done(*copy.owner, p, copy.bar);
    something_happened();
    landed = true;
  }
  return landed;
}

void forget_copies() { flying.clear(); }

// ---- cp.async: lands at once or at the wait
void copy_async(u32 shared, const void* global) {
  touch();
  if (reinterpret_cast<uintptr_t>(global) % 16) fail("copy_async16: source %p is not a multiple of 16", global);
  u8* to = shared_memory(shared, 16, "copy_async16");
  plain_access(global, 16, false, __builtin_return_address(0));
  plain_access(to, 16, true, __builtin_return_address(0));
  if (seeded() && random_below(4) == 0) std::memcpy(to, global, 16);
  else current->copies.push_back({to, static_cast<const u8*>(global)});
}

void copy_async_wait() {
  touch();
  for (const Copy& copy : current->copies) {
    plain_access(copy.to, 16, true, __builtin_return_address(0));
    std::memcpy(copy.to, copy.from, 16);
  }
  current->copies.clear();
}

// ---- named barriers
void named_barrier(u32 id, u32 threads, bool waits) {
  touch();
  const char* word = waits ? "named_sync" : "named_arrive";
  if (id >= NAMED_BARRIERS) fail("%s: barrier %u", word, id);
  if (!threads || threads % LANES) fail("%s: %u threads at barrier %u, not a multiple of %u", word, threads, id, LANES);
  Barrier& b = cta().barriers[id];
  if (b.arrived && b.wanted != threads) fail("%s: barrier %u for %u threads, others said %u", word, id, threads, b.wanted);
  b.wanted = threads;
  something_happened();
  release_into(b.gathered);
  if (++b.arrived < threads) {
    if (!waits) return;
    b.waiting.push_back(current);
    wait_until_woken(word, id);
    lanes_met();
    return;
  }
  b.arrived = 0;
  const Clocks gathered = std::move(b.gathered);
  b.gathered = Clocks();
  if (waits) acquire_from(gathered), lanes_met();
  std::vector<Lane*> waiting;
  waiting.swap(b.waiting);
  for (Lane* lane : waiting) acquire_for(*lane->warp, gathered), wake(lane);
}

// ---- programmatic dependent launch
void release_next_launch(Cta& own) {
  if (own.released) return;
  own.released = true, own.grid->released++;
  something_happened();
}

void let_next_launch_start() {
  touch();
  release_next_launch(cta());
}

void wait_previous_launch() {
  touch();
  Grid* before = cta().grid->previous;
  while (before && before->left) {
    before->waiting.push_back(current);
    wait_until_woken("wait_previous_launch", 0);
  }
  if (before) acquire_from(before->ended);
}
}  // namespace emulator
