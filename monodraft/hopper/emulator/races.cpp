// Races between plain accesses: two of the same bytes, one a write, neither of which the other's warp knew of. The compiler
// calls the functions at the end before every access (its thread sanitizer's interface, without its library).
#include "races.h"

#ifdef EMULATOR_RACES
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "machine.h"

namespace emulator {
bool unwatched = false;

struct Access {
  u16 who;        // warp, or the bulk copies of a CTA; NOBODY
  u8 lane, bulk;
  u32 clock, meeting;
  u32 place;      // return address, from PLACES on
};
struct Cell {  // of two bytes
  Access write, reads[3];
};
static constexpr u16 NOBODY = 0;

// An array whose accesses are looked at.
struct Watched {
  const u8* from;
  const u8* to;
  Cell* cells;
  std::string name;
};
static std::vector<Watched> arrays;
static std::vector<Watched> shared_arrays;  // by place
static std::vector<u32> clocks;             // of everybody, monotonic over a run
static std::vector<u32> starts;             // clock of a warp when its CTA started
static std::vector<Warp*> warps_by_id;
static std::unordered_map<const void*, Clocks> flags;
static u32 first_bulk, all_places, everybody;

// Return addresses fit 32 bits as distances from here.
static const char anchor = 0;

static Cell* cells_for(size_t bytes) {
  void* block = mmap(nullptr, bytes / 2 * sizeof(Cell) + sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return block == MAP_FAILED ? nullptr : static_cast<Cell*>(block);
}
static void clear(Watched& w) {
  if (w.cells) madvise(w.cells, size_t(w.to - w.from) / 2 * sizeof(Cell), MADV_DONTNEED);
}

static void join(std::vector<u32>& to, const std::vector<u32>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  u32* a = to.data();
  const u32* b = from.data();
  for (size_t i = 0; i < from.size(); i++) a[i] = a[i] > b[i] ? a[i] : b[i];
}
static void join(Clocks& to, const Clocks& from) {
  join(to.all, from.all), join(to.global, from.global), join(to.shared, from.shared);
}
static void raise(std::vector<u32>& to, u32 who, u32 clock) {
  if (to.size() < everybody) to.resize(everybody);
  to[who] = std::max(to[who], clock);
}

static Clocks& mine() { return current->warp->known; }
static void tick(Warp& warp) { warp.known.all[warp.id] = ++clocks[warp.id]; }

void races_start(u32 places, u32 warps) {
  all_places = places, first_bulk = 1 + places * warps, everybody = first_bulk + 2 * places;
  clocks.assign(everybody, 0), starts.assign(everybody, 0), warps_by_id.assign(everybody, nullptr);
  flags.clear();
  for (Watched& w : arrays) clear(w);
  shared_arrays.resize(std::max<size_t>(shared_arrays.size(), places));
  unwatched = false;
}

void races_start_cta(Cta& cta, u32 place) {
  Watched& w = shared_arrays[place];
  const u8* end = cta.shared + cta.grid->shared_bytes;
  if (w.to - w.from != end - cta.shared) {
    if (w.cells) munmap(w.cells, size_t(w.to - w.from) / 2 * sizeof(Cell) + sizeof(Cell));
    w.cells = cells_for(cta.grid->shared_bytes);
  }
  w.from = cta.shared, w.to = end, w.name = "shared memory";
  clear(w);
  cta.bulk_id = first_bulk + place, cta.past_id = cta.bulk_id + all_places;
  cta.phases.clear();
  for (Barrier& b : cta.barriers) b.gathered = Clocks();
  for (Warp& warp : cta.warps) {
    warp.id = 1 + place * u32(cta.warps.size()) + warp.index;
    warps_by_id[warp.id] = &warp;
    for (std::vector<u32>* v : {&warp.known.all, &warp.known.global, &warp.known.shared}) v->assign(everybody, 0);
    warp.fenced = warp.seen = Clocks();
    tick(warp);
    starts[warp.id] = clocks[warp.id];
  }
}

void races_end_cta(Cta& cta) {
  for (Warp& warp : cta.warps) join(cta.grid->ended, warp.known);
  raise(cta.grid->ended.all, cta.bulk_id, clocks[cta.bulk_id]);
  raise(cta.grid->ended.all, cta.past_id, ++clocks[cta.past_id]);
}

void release_into(Clocks& to) {
  join(to, mine());
  tick(*current->warp);
}
void acquire_for(Warp& warp, const Clocks& from) { join(warp.known, from); }
void acquire_from(const Clocks& from) { join(mine(), from); }
void move_clocks(Clocks& from, Clocks& to) {
  join(to, from);
  from = Clocks();
}
void lanes_met() { current->meetings++; }

void fence_proxies(bool global) {
  join(global ? mine().global : mine().shared, mine().all);
  tick(*current->warp);
}
void fence_threads() {
  Warp& warp = *current->warp;
  join(warp.known, warp.seen);
  warp.fenced = warp.known;
  tick(warp);
}
void released_at(const void* address, bool release, bool keeps) {
  Clocks& at = flags[address];
  if (!keeps) at = Clocks();
  if (release) release_into(at);
  else join(at, current->warp->fenced);
}
void acquired_at(const void* address, bool acquire) {
  const auto at = flags.find(address);
  if (at == flags.end()) return;
  join(acquire ? mine() : current->warp->seen, at->second);
}

// ---- accesses
static Watched* watched_at(const u8* p) {
  if (!shared_arrays.empty()) {
    for (Watched& w : shared_arrays)
      if (p >= w.from && p < w.to) return &w;
  }
  auto after = std::upper_bound(arrays.begin(), arrays.end(), p, [](const u8* at, const Watched& w) { return at < w.from; });
  if (after == arrays.begin()) return nullptr;
  --after;
  return p < after->to ? &*after : nullptr;
}

static std::string told(const Access& a) {
  char text[128];
  if (a.bulk) snprintf(text, sizeof text, "a bulk copy of CTA place %u", a.who - first_bulk);
  else {
    const Warp& warp = *warps_by_id[a.who];
    snprintf(text, sizeof text, "CTA %u, warp %u, lane %u", warp.cta->index, warp.index, a.lane);
  }
  std::string all = text;
  snprintf(text, sizeof text, " @%p", reinterpret_cast<const void*>(&anchor + int(a.place)));
  return all + text;
}

static void race(const char* what, const Watched& w, const u8* p, const Access& now, const Access& before) {
  const bool shared = &w >= shared_arrays.data() && &w < shared_arrays.data() + shared_arrays.size();
  const std::string text = told(now) + "\n    and the earlier one: " + told(before);
  fail("race: %s, %s at byte %zu (%#zx)\n    the later one: %s", what, w.name.c_str(), size_t(p - w.from),
       size_t(p - w.from) + (shared ? SHARED_BASE : 0), text.c_str());
}

static bool known(const Access& a) {  // to the running lane
  if (a.who == NOBODY) return true;
  const Warp& warp = *current->warp;
  const u32 past = warp.cta->past_id;
  if (a.who == warp.id && a.clock < starts[warp.id]) return warp.known.all[past] == clocks[past];  // of a CTA before this one
  if (a.who == warp.id) return a.lane == current->thread % LANES || a.meeting != current->meetings;
  return a.clock <= warp.known.all[a.who];
}

static void note_read(Cell& cell, const Access& now) {
  for (Access& r : cell.reads)
    if (r.who == now.who || r.who == NOBODY) {
      r = now;
      return;
    }
  for (Access& r : cell.reads)
    if (known(r)) {
      r = now;
      return;
    }
  cell.reads[now.clock % 3] = now;  // one is forgotten
}

static void note_write(Cell& cell, const Access& now) {
  cell.write = now;
  for (Access& r : cell.reads) r.who = NOBODY;
}

static Access access_of(void* place) {
  Warp& warp = *current->warp;
  return {u16(warp.id), u8(current->thread % LANES), 0, clocks[warp.id], current->meetings,
          u32(static_cast<const char*>(place) - &anchor)};
}

void plain_access(const void* address, u32 bytes, bool write, void* place) {
  if (unwatched || !current) return;
  const u8* p = static_cast<const u8*>(address);
  if (reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(current->stack) < STACK) return;
  Watched* w = watched_at(p);
  if (!w) return;
  const Access now = access_of(place);
  const size_t first = size_t(p - w->from) / 2, last = (size_t(p - w->from) + bytes - 1) / 2;
  for (size_t i = first; i <= last; i++) {
    Cell& cell = w->cells[i];
    if (!known(cell.write)) race(write ? "two writes" : "a read after a write", *w, w->from + 2 * i, now, cell.write);
    if (!write) {
      note_read(cell, now);
      continue;
    }
    for (const Access& r : cell.reads)
      if (!known(r)) race("a write after a read", *w, w->from + 2 * i, now, r);
    note_write(cell, now);
  }
}

// Of data that no CTA of the same launch may write: it goes through a cache that nobody keeps coherent.
void read_only_access(const void* address, u32 bytes) {
  void* place = __builtin_return_address(0);
  if (!current) return;
  const u8* p = static_cast<const u8*>(address);
  Watched* w = watched_at(p);
  if (!w) return;
  for (size_t i = size_t(p - w->from) / 2; i <= (size_t(p - w->from) + bytes - 1) / 2; i++) {
    const Access& a = w->cells[i].write;
    if (a.who == NOBODY || a.bulk || a.clock < starts[a.who] || warps_by_id[a.who]->cta->grid != cta().grid) continue;
    race("__ldg of what the same launch writes", *w, w->from + 2 * i, access_of(place), a);
  }
}

u32 bulk_accesses(Cta& own, const void* to, const void* from, u32 bytes, void* place) {
  Access now = access_of(place);
  const u32 number = ++clocks[own.bulk_id];
  const Access copy = {u16(own.bulk_id), 0, 1, number, 0, now.place};
  const Clocks& have = mine();
  auto fenced = [](const Access& a, const std::vector<u32>& in) { return a.who == NOBODY || a.clock <= in[a.who]; };
  const char* read_early = "a bulk copy's read after a write, without a fence between the proxies, or unordered";
  const char* over_write = "a bulk copy over a write, without a fence between the proxies, or unordered";
  if (Watched* w = watched_at(static_cast<const u8*>(from))) {
    const size_t first = size_t(static_cast<const u8*>(from) - w->from) / 2;
    for (size_t i = first; i < first + bytes / 2; i++) {
      const Access& a = w->cells[i].write;
      if (!fenced(a, have.global)) race(read_early, *w, w->from + 2 * i, now, a);
      note_read(w->cells[i], copy);
    }
  }
  if (Watched* w = watched_at(static_cast<const u8*>(to))) {
    const size_t first = size_t(static_cast<const u8*>(to) - w->from) / 2;
    for (size_t i = first; i < first + bytes / 2; i++) {
      Cell& cell = w->cells[i];
      if (!fenced(cell.write, have.shared)) race(over_write, *w, w->from + 2 * i, now, cell.write);
      for (const Access& r : cell.reads)
        if (!known(r)) race("a bulk copy over a read", *w, w->from + 2 * i, now, r);
      note_write(cell, copy);
    }
  }
  return number;
}

void bulk_landed(Cta& own, Clocks& at, u32 number) {
  raise(at.all, own.bulk_id, number), raise(at.global, own.bulk_id, number), raise(at.shared, own.bulk_id, number);
}
}  // namespace emulator

// Arrays to look at, in any order; forgets those of earlier calls.
extern "C" void emulator_watch(const void* const* from, const unsigned long long* bytes, const char* const* names, int count) {
  using namespace emulator;
  for (Watched& w : arrays) munmap(w.cells, size_t(w.to - w.from) / 2 * sizeof(Cell) + sizeof(Cell));
  arrays.clear();
  for (int i = 0; i < count; i++) {
    const u8* p = static_cast<const u8*>(from[i]);
    arrays.push_back({p, p + bytes[i], cells_for(bytes[i]), names[i]});
  }
  std::sort(arrays.begin(), arrays.end(), [](const Watched& a, const Watched& b) { return a.from < b.from; });
}

// What the compiler calls before an access of so many bytes.
#define ANNOUNCED(name, bytes, write) \
  extern "C" void name(void* p) { emulator::plain_access(p, bytes, write, __builtin_return_address(0)); }
#define ANNOUNCED_OF(bytes)                           \
  ANNOUNCED(__tsan_read##bytes, bytes, false)         \
  ANNOUNCED(__tsan_write##bytes, bytes, true)         \
  ANNOUNCED(__tsan_unaligned_read##bytes, bytes, false) \
  ANNOUNCED(__tsan_unaligned_write##bytes, bytes, true)
ANNOUNCED_OF(1)
ANNOUNCED_OF(2)
ANNOUNCED_OF(4)
ANNOUNCED_OF(8)
ANNOUNCED_OF(16)
extern "C" void __tsan_read_range(void* p, unsigned long bytes) {
  emulator::plain_access(p, emulator::u32(bytes), false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* p, unsigned long bytes) {
  emulator::plain_access(p, emulator::u32(bytes), true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
#endif
