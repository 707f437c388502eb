// The scheduler: one turn of one warp at a time, round robin or in a seeded order, until every grid has ended.
#include "machine.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <deque>
#include <string>

#include "report.h"

namespace emulator {

Lane* current = nullptr;
int budget = 0;

static constexpr u64 CANARY = 0x5afe57acc0ffee11ull;
static constexpr u32 IDLE_ROUNDS = 80;   // rounds in which nobody saw anything new, before the clock jumps: above 64 polls
static constexpr u32 IDLE_JUMPS = 64;    // jumps after which a launch that still sees nothing new will never end
static constexpr int TURN = 256;         // words of a warp in round robin

static Context scheduler;
static std::deque<Grid> grids;
static std::deque<Cta> ctas;
static u32 in_turn;       // lanes of the running warp that have not had this turn yet
static u32 first_lane;    // the turn starts at this lane
static bool busy;         // a warp lost its turn while it could have gone on
static u64 events, now, state;
static bool random_order;
static Lane* failed;      // in `fail`
static bool stuck;        // no lane failed, but none can go on
static void (*entry_point)(const void*);
static std::string failure;

// ---- seeded choices (splitmix64)
static u32 below(u64& from, u32 n) {
  u64 z = from += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return u32(((z ^ (z >> 31)) >> 32) * n >> 32);
}
u32 random_below(u32 n) { return below(state, n); }
bool seeded() { return random_order; }
u64 clock_now() { return now; }
void something_happened() { events++; }

// ---- a lane gives up
static void leave() {
  Lane* from = current;
  if (*reinterpret_cast<u64*>(from->stack) != CANARY) fail("a lane needs more than %u bytes of stack", STACK);
  const u32 rest = in_turn & from->warp->ready;
  if (!rest || budget <= 0) {
    switch_context(from->context, scheduler);
    return;
  }
  const u32 turned = first_lane ? rest >> first_lane | rest << (LANES - first_lane) : rest;
  const u32 lane = (u32(__builtin_ctz(turned)) + first_lane) % LANES;
  in_turn &= ~(1u << lane);
  Lane* next = &from->warp->lanes[lane];
  if (next == from) return;
  current = next;
  switch_context(from->context, next->context);
}

void yield_ready() {
  current->state = READY;
  busy = true;
  switch_context(current->context, scheduler);
}

static void suspend(const char* at, u64 wanted) {
  Lane* lane = current;
  lane->state = WAITING, lane->at = at, lane->wanted = wanted, lane->woken = false;
  lane->warp->ready &= ~(1u << lane->thread % LANES);
  leave();
}

void wait_until_woken(const char* at, u64 wanted) { suspend(at, wanted); }

void wake(Lane* lane) {
  const u32 bit = 1u << lane->thread % LANES;
  lane->state = READY;
  lane->warp->ready |= bit;
  if (lane->warp == current->warp) in_turn |= bit;
}

void poll(const char* at, const void* address, u32 value) {
  Lane* lane = current;
  if (lane->polled != address || lane->polled_value != value) {
    lane->polled = address, lane->polled_value = value;
    return;
  }
  lane->state = POLLED, lane->at = at, lane->wanted = value;
  leave();
  lane->state = READY;
}

bool join(const char* word, void* operand) {
  touch();
  Warp* warp = current->warp;
  const u32 bit = 1u << current->thread % LANES;
  if (warp->arrived && warp->word != word)
    fail("a warp's lanes diverge: lane %u is at %s, lanes %#x at %s", current->thread % LANES, word, warp->arrived, warp->word);
  warp->word = word;
  warp->operands[current->thread % LANES] = operand;
  warp->arrived |= bit;
  if (warp->arrived == ~0u) return true;
  suspend(word, 0);
  return false;
}

void release_warp() {
  Warp* warp = current->warp;
  warp->arrived = 0, warp->word = nullptr;
  for (Lane& lane : warp->lanes)
    if (&lane != current) wake(&lane);
}

void fail(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  failure = text;
  Lane& lane = *current;
  failure += described(lane);
  failed = &lane;
  switch_context(lane.context, scheduler);
  __builtin_unreachable();
}

// ---- the life of a lane
static void lane_entry() {
  entry_point(current->warp->cta->grid->arguments);
  Lane* lane = current;
  Cta& own = cta();
  if (!lane->copies.empty()) fail("a lane ended with %zu cp.async under way", lane->copies.size());
  something_happened();
  if (--own.left == 0) {
    races_end_cta(own);
    if (own.flying) fail("a CTA ended with %u bulk copies under way", own.flying);
    release_next_launch(own);
    if (--own.grid->left == 0)
      for (Lane* other : own.grid->waiting) wake(other);
  }
  lane->state = DONE, lane->at = "the end";
  lane->warp->ready &= ~(1u << lane->thread % LANES);
  leave();
  __builtin_unreachable();
}

// ---- memory of lanes and CTAs, kept from launch to launch
static char* stack_of(size_t index) {
  constexpr size_t AT_ONCE = 1024;
  static std::vector<char*> blocks;
  while (blocks.size() <= index / AT_ONCE) {
    constexpr int KIND = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* block = mmap(nullptr, AT_ONCE * STACK, PROT_READ | PROT_WRITE, KIND, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    blocks.push_back(static_cast<char*>(block));
  }
  return blocks[index / AT_ONCE] + index % AT_ONCE * STACK;
}

// A CTA's shared memory, with pages around it that nobody may touch.
static u8* shared_of(size_t index, u32 bytes) {
  static std::vector<std::pair<u8*, size_t>> blocks;
  constexpr size_t GUARD = 64 << 10;
  const size_t room = (bytes + 4095) / 4096 * 4096;
  if (blocks.size() <= index) blocks.resize(index + 1);
  auto& [base, have] = blocks[index];
  if (have != room) {
    if (base) munmap(base, have + 2 * GUARD);
    void* block = mmap(nullptr, room + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    base = static_cast<u8*>(block), have = room;
    mprotect(base + GUARD, room, PROT_READ | PROT_WRITE);
  }
  std::memset(base + GUARD, UNWRITTEN, room);
  return base + GUARD + (room - bytes) / 1024 * 1024;
}

// Puts the next CTA of a grid at a multiprocessor.
static bool start(Grid& grid, Cta& cta, size_t place) {
  cta.grid = &grid, cta.index = grid.begun++, cta.threads = cta.left = grid.threads;
  cta.released = false, cta.flying = 0;
  cta.shared = shared_of(place, grid.shared_bytes);
  if (!cta.shared) return false;
  for (Barrier& barrier : cta.barriers) barrier.wanted = barrier.arrived = 0;
  cta.warps.resize(grid.threads / LANES);
  for (u32 w = 0; w < cta.warps.size(); w++) {
    Warp& warp = cta.warps[w];
    warp.cta = &cta, warp.index = w, warp.ready = ~0u, warp.arrived = 0, warp.word = nullptr;
    for (u32 l = 0; l < LANES; l++) {
      Lane& lane = warp.lanes[l];
      lane.warp = &warp, lane.thread = w * LANES + l, lane.state = READY, lane.at = "the start";
      lane.polled = nullptr, lane.meetings = 0;
      lane.stack = stack_of(place * 1024 + lane.thread);
      if (!lane.stack) return false;
      *reinterpret_cast<u64*>(lane.stack) = CANARY;
      // Lanes' stacks begin at different cache sets: at one set they would push each other out.
      make_context(lane.context, lane.stack, STACK - l * 192, lane_entry);
    }
  }
  races_start_cta(cta, u32(place));
  return true;
}

// A free multiprocessor takes the next CTA of the first grid that has one and may start. False where memory ran out.
static bool fill(std::vector<Warp*>& order) {
  bool changed = false;
  for (size_t place = 0; place < ctas.size(); place++) {
    if (ctas[place].left) continue;
    Grid* next = nullptr;
    for (Grid& grid : grids) {
      const Grid* before = grid.previous;
      if (before && (before->begun < before->ctas || before->released < before->ctas)) continue;
      if (grid.begun < grid.ctas) {
        next = &grid;
        break;
      }
    }
    if (!next) break;
    if (!start(*next, ctas[place], place)) return false;
    changed = true;
  }
  if (!changed) return true;
  order.clear();
  for (Cta& cta : ctas)
    if (cta.left)
      for (Warp& warp : cta.warps) order.push_back(&warp);
  return true;
}

static void run_turn(Warp& warp) {
  now++;
  first_lane = random_order ? random_below(LANES) : 0;
  budget = random_order ? 1 + (random_below(8) ? random_below(64) : random_below(2048)) : TURN;
  in_turn = warp.ready;
  const u32 turned = first_lane ? in_turn >> first_lane | in_turn << (LANES - first_lane) : in_turn;
  const u32 lane = (u32(__builtin_ctz(turned)) + first_lane) % LANES;
  in_turn &= ~(1u << lane);
  current = &warp.lanes[lane];
  switch_context(scheduler, current->context);
}

// ---- CTAs that are held up: by some seeds, a range of them for a stretch of rounds, then for another one another range
struct Held {
  u64 state, until;   // its own choices: seeds that hold nobody up are not changed by it; the round that ends the stretch
  u32 first, end;     // CTAs of each grid
  u32 every;          // they have a turn in one round of so many
  bool used;
} static held;

static void next_stretch(u64 round) {
  const u32 all = grids.front().ctas;
  u32 parts = 1;
  if (below(held.state, 2)) parts = 2u << below(held.state, 3);  // often just a rank's, where they are rank groups
  const bool whole = parts > 1 && all % parts == 0;
  held.first = whole ? below(held.state, parts) * (all / parts) : below(held.state, all);
  held.end = held.first + (whole ? all / parts : 1 + below(held.state, all - held.first));
  held.every = 2u << below(held.state, 10);
  held.until = round + (16u << below(held.state, 9)) + below(held.state, 16);
}

static bool held_up(const Warp& warp, u64 round) {
  const u32 cta = warp.cta->index;
  return cta >= held.first && cta < held.end && round % held.every;
}

// Nobody saw anything new for a while: copies land, then time passes, so that bounded waits end. False: it will never end.
static bool let_time_pass(u64 jump, u32& idle, u32& jumps) {
  if (land_due_copies(true)) return true;
  bool polling = false, waiting = false;
  for (Cta& cta : ctas) {
    if (!cta.left) continue;
    waiting |= !cta.phase_waiters.empty();
    for (Warp& warp : cta.warps) polling |= warp.ready != 0;
  }
  if (polling && ++idle < IDLE_ROUNDS) return true;
  if ((!polling && !waiting) || ++jumps > IDLE_JUMPS) return false;
  idle = 0;
  now += jump;
  for (Cta& cta : ctas) {
    std::vector<Lane*> lanes;
    lanes.swap(cta.phase_waiters);
    for (Lane* lane : lanes) lane->woken = true, wake(lane);
  }
  return true;
}

static void schedule(u64 jump) {
  u32 idle = 0, jumps = 0;
  bool skipped = false;  // somebody was held up in the last round, and nobody else could go on
  std::vector<Warp*> order;
  for (u64 round = 0;; round++) {
    if (!fill(order)) {
      failure = "no memory for the lanes' stacks or the CTAs' shared memory";
      return;
    }
    bool ended = true;
    for (Grid& grid : grids) ended &= grid.left == 0;
    if (ended) return;
    if (random_order)
      for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_below(u32(i))]);
    if (held.used && round >= held.until) next_stretch(round);
    const u64 before = events;
    const bool all = !held.used || skipped;
    busy = skipped = false;
    for (Warp* warp : order) {
      if (!warp->ready) continue;
      if (!all && held_up(*warp, round) && (skipped = true)) continue;
      run_turn(*warp);
      if (!failure.empty()) return;
      land_due_copies(false);
    }
    // Time passes only where nobody can go on, those held up neither: holding up ends no wait.
    skipped &= events == before && !busy;
    if (events != before) idle = jumps = 0;
    else if (!busy && !skipped && !let_time_pass(jump, idle, jumps)) {
      stuck = true;
      failure = jumps > IDLE_JUMPS ? "livelock: all warps poll for what never comes" : "deadlock: no warp can go on";
      return;
    }
  }
}

// ---- a stray access of plain C++ code ends the launch, not the process
static sigjmp_buf stray;
static void on_fault(int, siginfo_t* info, void* context) {
  char text[96];
  snprintf(text, sizeof text, "an access to %p, where no array lies", info->si_addr);
  failure = text;
  failure += described(*current);
#if defined(__x86_64__)
  snprintf(text, sizeof text, " @%p", (void*)(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] + 1));
  failure += text;
#endif
  siglongjmp(stray, 1);
}

static void guarded_schedule(u64 jump) {
  static char handler_stack[64 << 10];
  stack_t own = {}, old_stack;
  own.ss_sp = handler_stack, own.ss_size = sizeof handler_stack;
  sigaltstack(&own, &old_stack);
  struct sigaction action = {}, old_segv, old_bus;
  action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  if (!sigsetjmp(stray, 1)) schedule(jump);
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaltstack(&old_stack, nullptr);
}

// One grid of a run. `after`: the launch that it depends on, or -1.
struct Launch {
  const void* arguments;
  u32 ctas, threads, shared_bytes;
  int after;
};

// Runs `count` launches on as many multiprocessors as the independent ones have CTAs; a CTA fills one. `seed` 0: round
// robin. `jump`: cycles that pass when nothing else can. Null or what went wrong.
const char* run(void (*kernel)(const void*), const Launch* launches, int count, u64 seed, u64 jump) {
  entry_point = kernel;
  random_order = seed != 0, state = seed;
  held = {~seed, 0, 0, 0, 0, false};
  held.used = random_order && below(held.state, 2);
  failure.clear(), stuck = false, failed = nullptr;
  grids.clear(), ctas.clear();
  forget_copies();
  size_t places = 0;
  for (int i = 0; i < count; i++) {
    const Launch& l = launches[i];
    if (l.after < 0) places += l.ctas;
    Grid* previous = l.after < 0 ? nullptr : &grids[size_t(l.after)];
    grids.push_back({l.arguments, l.ctas, l.threads, l.shared_bytes, l.ctas, 0, 0, previous, {}, {}});
  }
  ctas.resize(places);
  races_start(u32(places), count ? launches[0].threads / LANES : 0);
  for (Cta& cta : ctas) cta.left = 0;
  guarded_schedule(jump);
  if (failed) failure += place(*failed);
  if (stuck) failure += all_described(ctas);
  current = nullptr;
  ctas.clear();
  return failure.empty() ? nullptr : failure.c_str();
}
}  // namespace emulator
