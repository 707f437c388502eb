// Who knows of whose accesses: vector clocks over warps, and a record of the last accesses of every two bytes. Only in builds
// with EMULATOR_RACES (docs/hopper.md); otherwise all of this is empty.
#pragma once
#include <vector>

namespace emulator {
typedef unsigned int u32;
struct Cta;
struct Warp;
struct Grid;

#ifdef EMULATOR_RACES
constexpr bool RACES = true;
// Accesses known of, by who made them: plain ones (`all`), and those of them that bulk copies may count on, in global and in
// shared memory, because a fence between the proxies came after them.
struct Clocks {
  std::vector<u32> all, global, shared;
};

void races_start(u32 places, u32 warps);              // of a run: everything before it is known
void races_start_cta(Cta& cta, u32 place);
void races_end_cta(Cta& cta);                         // its grid's `ended` knows what it knows
void release_into(Clocks& to);                        // of the running warp
void acquire_from(const Clocks& from);
void acquire_for(Warp& warp, const Clocks& from);
void move_clocks(Clocks& from, Clocks& to);           // joined; `from` is empty afterwards
void lanes_met();                                     // the running lane has met all others of its warp
void fence_proxies(bool global);
void fence_threads();                                 // makes relaxed words before and after it acquire and release
void released_at(const void* address, bool release, bool keeps);  // a store or read-modify-write of a flag
void acquired_at(const void* address, bool acquire);
u32 bulk_accesses(Cta& cta, const void* to, const void* from, u32 bytes, void* place);  // the copy's number
void bulk_landed(Cta& cta, Clocks& at, u32 number);
void plain_access(const void* address, u32 bytes, bool write, void* place);
void read_only_access(const void* address, u32 bytes);
extern bool unwatched;  // accesses of words that are no data

struct Unwatched {
  Unwatched() { unwatched = true; }
  ~Unwatched() { unwatched = false; }
};
#else
constexpr bool RACES = false;
struct Clocks {};
inline void races_start(u32, u32) {}
inline void races_start_cta(Cta&, u32) {}
inline void races_end_cta(Cta&) {}
inline void release_into(Clocks&) {}
inline void acquire_from(const Clocks&) {}
inline void acquire_for(Warp&, const Clocks&) {}
inline void move_clocks(Clocks&, Clocks&) {}
inline void lanes_met() {}
inline void fence_proxies(bool) {}
inline void fence_threads() {}
inline void released_at(const void*, bool, bool) {}
inline void acquired_at(const void*, bool) {}
inline u32 bulk_accesses(Cta&, const void*, const void*, u32, void*) { return 0; }
inline void bulk_landed(Cta&, Clocks&, u32) {}
inline void plain_access(const void*, u32, bool, void*) {}
inline void read_only_access(const void*, u32) {}
struct Unwatched {
  Unwatched() {}
};
#endif
}  // namespace emulator
