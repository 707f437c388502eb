// What tensor-parallel ranks hand to each other: partial rows of o and down, candidates of the Markov chain. Every rank has
// exchange memory that all ranks write: flags [RANKS]; partials [set][source rank][ROWS][HIDDEN_PADDED] bf16, set 0 of o, 1 of
// down; best [2][ROWS][RANKS * GRID]. A meeting (every rank's grid has ended the stage before) lies between a write and its
// reads, and at least one more between those and the next write of the same place.
#pragma once
#include "exchange.cuh"

#if RANKS > 1
#define PARTIALS_AT 128
#define BEST_AT (PARTIALS_AT + 2ull * RANKS * ROWS * HIDDEN_PADDED * 2)

INLINE u32* partial_pair(u8* exchange, u32 set, u32 source, u32 row, u32 k) {
  return (u32*)(exchange + PARTIALS_AT) + ((((u64)set * RANKS + source) * ROWS + row) * HIDDEN_PADDED + k) / 2;
}
INLINE u64* best_row(u8* exchange, u32 step, u32 request) {
  return (u64*)(exchange + BEST_AT) + ((u64)(step & 1) * ROWS + request) * (RANKS * GRID);
}

// All that any rank stored before this stage is visible after it, for all epilogue threads.
INLINE void meet_ranks(const Args& a, const Health& health, u32 tag, u32 stage, u32 thread) {
  if (thread == 0) {
    if (cta() == 0)
      for (u32 peer = 0; peer < RANKS; peer++) store_release_system((u32*)a.peers[peer] + a.rank, tag);
    wait_peers(health, (const u32*)a.peers[a.rank], RANKS, tag, stage);
  }
  epilogue_sync();
}

// A pair of this rank's partial row, in bf16, to every rank.
INLINE void put_partial(const Args& a, u32 set, float2 y, u32 row, u32 k) {
  const u32 word = pack_bf16(y.x, y.y);
  for (u32 peer = 0; peer < RANKS; peer++) *partial_pair(a.peers[peer], set, (u32)a.rank, row, k) = word;
}

// The sum of all ranks' partials of a pair, in rank order: the same bits on every rank.
INLINE float2 sum_partials(const Args& a, u32 set, u32 row, u32 k) {
  float2 y = make_float2(0.f, 0.f);
  for (u32 source = 0; source < RANKS; source++) {
    const u32 word = __ldcg(partial_pair(a.peers[a.rank], set, source, row, k));
    y = source ? make_float2(y.x + low_bf16(word), y.y + high_bf16(word)) : make_float2(low_bf16(word), high_bf16(word));
  }
  return y;
}

INLINE void put_best(const Args& a, u32 step, u32 request, u64 v) {
  for (u32 peer = 0; peer < RANKS; peer++) best_row(a.peers[peer], step, request)[a.rank * GRID + cta()] = v;
}
#endif
