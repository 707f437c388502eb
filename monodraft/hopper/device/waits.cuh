// Device words: waits that always end, the record of the first one that ended by its bound, and the grid barrier.
//
// A wait that runs out records where it was and goes on as if satisfied: every other wait of the launch then finds the
// record and ends at once, all named barriers still pair up, the launch completes with rubbish, and the host raises.
#pragma once
#include "grid.cuh"

// Places that wait. The host names them (monodraft/hopper/health.py holds the same list, a test compares).
enum Region : u32 { REGION_NONE, REGION_WEIGHTS, REGION_RING, REGION_ACTIVATIONS, REGION_GRID, REGION_PEERS };

// Health record, 16 words: failed, stage, region, CTA, tag wanted, tag seen, missing CTA (or rank), arrivals counted.
struct Health {
  u32* words;
  u64 bound;  // cycles of the SM clock, for the grid; waits inside a CTA get half as long again, so the cause ends first
};

INLINE void record_failure(const Health& h, u32 stage, u32 region, u32 wanted, u32 seen, u32 missing, u32 count) {
  if (atomicCAS(h.words, 0u, 1u) != 0u) return;
  h.words[1] = stage;
  h.words[2] = region;
  h.words[3] = cta();
  h.words[4] = wanted;
  h.words[5] = seen;
  h.words[6] = missing;
  h.words[7] = count;
}

INLINE void wait_phase(const Health& h, u32 bar, u32 parity, u32 stage, u32 region) {
  if (phase_try(bar, parity)) return;
  long long start = clock64();
  while (!phase_try(bar, parity))
    if ((u64)(clock64() - start) > h.bound + (h.bound >> 1)) {
      record_failure(h, stage, region, parity, parity ^ 1u, ~0u, 0u);
      return;
    }
}

// One counter for the grid whose top bit flips when the last CTA arrives (it resets itself, so graph replays need no
// memset), and one progress word per CTA, which a wait that ran out reads to name who is missing. One thread calls it.
INLINE void wait_grid(const Health& h, u32* counter, u32* progress, u32 tag, u32 stage, bool publish) {
  u32 add = cta() == 0 ? 0x80000000u - (ctas() - 1) : 1u, old;
  if (publish) {
    store_relaxed(progress + cta(), tag);
    old = add_release(counter, add);
  } else {
    old = load_acquire(counter);
  }
  if ((old ^ load_acquire(counter)) & 0x80000000u) return;
  if (load_relaxed(h.words)) return;
  long long start = clock64();
  for (u32 polls = 1; !((old ^ load_acquire(counter)) & 0x80000000u); polls++) {
    if (polls & 63u) continue;
    if (load_relaxed(h.words)) return;
    if ((u64)(clock64() - start) > h.bound) {
      u32 missing = ~0u, seen = tag;
      for (u32 i = 0; i < ctas() && missing == ~0u; i++) {
        u32 t = load_relaxed(progress + i);
        if (t != tag) missing = i, seen = t;
      }
      record_failure(h, stage, REGION_GRID, tag, seen, missing, load_relaxed(counter) & 0x7fffffffu);
      return;
    }
  }
}

// Waits until `count` flags hold `tag` or a later one (a peer may be ahead by one meeting). One thread calls it. It lasts a
// quarter longer than for the grid, so that a peer whose own CTA is missing says so first, and less than waits inside a CTA.
INLINE void wait_peers(const Health& h, const u32* flags, u32 count, u32 tag, u32 stage) {
  long long start = 0;
  u32 polls = 0;
  for (u32 peer = 0; peer < count;) {
    const u32 seen = load_acquire_system(flags + peer);
    if ((int)(seen - tag) >= 0) {
      peer++;
      continue;
    }
    if (!start) start = clock64();
    if (++polls & 63u) continue;
    if (load_relaxed(h.words)) return;
    if ((u64)(clock64() - start) > h.bound + (h.bound >> 2)) {
      record_failure(h, stage, REGION_PEERS, tag, seen, peer, peer);
      return;
    }
  }
}
