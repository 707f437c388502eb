// What the emulated GPU consists of: grids of CTAs of warps of lanes, each lane a fiber; and what a lane may ask for.
#pragma once
#include <cstdint>
#include <cstdio>
#include <unordered_map>
#include <vector>

#include "races.h"
#include "switch.h"

namespace emulator {
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 LANES = 32, NAMED_BARRIERS = 16, STACK = 64 << 10, SHARED_BASE = 1024;
constexpr u8 UNWRITTEN = 0xa5;  // what shared memory holds at the start

struct Warp;
struct Cta;
struct Grid;

// READY: goes on when its warp's turn comes. POLLED: the same, but saw nothing new when it last looked.
enum State : u8 { READY, POLLED, WAITING, DONE };

struct Copy {  // cp.async of a lane that has not landed
  u8* to;
  const u8* from;
};

struct Lane {
  Context context;
  char* stack;
  Warp* warp;
  u32 thread;              // threadIdx.x
  State state;
  const char* at;          // the word that it waits in
  u64 wanted;              // what it waits for: a barrier's id, an mbarrier's address and parity
  bool woken;              // a wait on an mbarrier ended without its phase
  const void* polled;      // address and value of its last poll
  u32 polled_value;
  u32 meetings;            // how often it has met the other lanes of its warp
  std::vector<Copy> copies;
};

struct Warp {
  Cta* cta;
  u32 index, ready, arrived;  // masks of lanes: able to run in this turn; in the word below
  const char* word;           // the collective word that lanes are gathering at
  void* operands[LANES];
  u32 id;                     // in clocks
  Clocks known, fenced, seen; // accesses known of; before its last fence; behind what it has read without acquire
  Lane lanes[LANES];
};

struct Barrier {
  u32 wanted, arrived;
  Clocks gathered;
  std::vector<Lane*> waiting;
};

struct PhaseClocks {  // of an mbarrier: of the phase that runs, of those that are over
  Clocks gathered, done;
};

struct Cta {
  Grid* grid;
  u32 index, threads, left;  // lanes that have not ended; 0: the place is free
  u32 flying;                // bulk copies that have not landed
  bool released;           // has let the next launch start
  u8* shared;
  Barrier barriers[NAMED_BARRIERS];
  std::vector<Lane*> phase_waiters;
  std::unordered_map<u32, PhaseClocks> phases;
  u32 bulk_id, past_id;  // in clocks: its bulk copies, the CTAs that were at its place before
  std::vector<Warp> warps;
};

struct Grid {
  const void* arguments;
  u32 ctas, threads, shared_bytes, left;  // CTAs that have not ended
  u32 begun;                              // CTAs that have started
  u32 released;                           // CTAs that have let the next launch start, or ended
  Grid* previous;                         // the launch that this one depends on
  std::vector<Lane*> waiting;             // griddepcontrol.wait of the next launch
  Clocks ended;
};

// The lane that runs. Every lane finds itself here again when it goes on.
extern Lane* current;

inline Cta& cta() { return *current->warp->cta; }

// Turns that are left to the running warp before another one gets its chance.
extern int budget;

void fail(const char* format, ...) __attribute__((format(printf, 1, 2), noreturn));
void yield_ready();                                  // another warp's turn
void wait_until_woken(const char* at, u64 wanted);   // until another lane or a copy makes this lane READY
void wake(Lane* lane);
void poll(const char* at, const void* address, u32 value);
void something_happened();                           // other lanes may see something new
bool join(const char* word, void* operand);          // true in the lane that came last: it computes for all
void release_warp();                                 // ends the word that `join` gathered the warp at
u64 clock_now();
u32 random_below(u32 n);
bool seeded();

// Every word that other lanes may observe passes here: with a seed, a warp may lose its turn anywhere.
inline void touch() {
  if (--budget <= 0) yield_ready();
}

// The memory that a 32-bit shared address names, or a failure where it lies outside of the CTA's.
inline u8* shared_memory(u32 address, u32 bytes, const char* word) {
  Cta& own = cta();
  if (address < SHARED_BASE || address - SHARED_BASE + bytes > own.grid->shared_bytes)
    fail("%s: shared address %#x + %u is outside of the CTA's %u bytes at %#x", word, address, bytes, own.grid->shared_bytes,
         SHARED_BASE);
  if (address % bytes && bytes <= 16) fail("%s: shared address %#x is not a multiple of %u", word, address, bytes);
  return own.shared + (address - SHARED_BASE);
}

// A word of a whole warp: lanes bring operands, the last one computes in all of them.
template <class T, class F>
inline T collective(const char* word, T operand, F compute) {
  if (join(word, &operand)) {
    compute(reinterpret_cast<T* const*>(current->warp->operands));
    release_warp();
  }
  return operand;
}

// Bulk copies, mbarriers, named barriers (barriers.cpp).
void phase_init(u32 bar, u32 arrivals);
void phase_expect(u32 bar, u32 bytes);
void phase_arrive(u32 bar);
bool phase_done(u32 bar, u32 parity);
void bulk_copy(u32 shared, const void* global, u32 bytes, u32 bar);
void named_barrier(u32 id, u32 threads, bool waits);
void copy_async(u32 shared, const void* global);
void copy_async_wait();
bool land_due_copies(bool all_idle);
void forget_copies();
void release_next_launch(Cta& own);
void let_next_launch_start();
void wait_previous_launch();
}  // namespace emulator
