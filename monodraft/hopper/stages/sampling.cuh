// Sampled drafts, in builds with SAMPLED: of a request with a temperature T, a slot's id is the argmax of
//     fl32(usable(fl32(logit / T)) + noise),  noise = fl32(-log(-log(u))),  u = (x + 1/2) 2^-32,
// lowest id on ties, x the word id % 4 of Philox4x32-10 with the request's seed as key and the counter (id / 4, position of the
// query row, 0, 0): monodraft/reference/sampling.py. Logarithms are those of float64, as in the reference: within 2 units of
// 2^-52 of each other, so that their float32 differ in about one id of 2^27, by one unit in the last place.
#pragma once
#include "ranks.cuh"

#define GREATEST 3.40282347e+38f

// A logit as a number of its own place: NaN is -infinity, +infinity the greatest float32, -0 is 0. Greedy drafts too.
INLINE float usable(float logit) { return logit != logit ? -INFINITY : fminf(logit + 0.f, GREATEST); }

#if SAMPLED
// [ROWS] of temperature (float32 bits; 0: greedy), seed low, seed high, 0: behind the page tables, see draws.py.
#define STEP_DRAWS (STEP_WORDS + ROWS * MAX_PAGES)

INLINE u32 philox_word(u32 c0, u32 c1, u32 k0, u32 k1, u32 which) {
  u32 c2 = 0, c3 = 0;
#pragma unroll
  for (int i = 0; i < 10; i++) {
    const u64 p0 = (u64)c0 * 0xD2511F53u, p1 = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0, c1 = (u32)p1;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1, c3 = (u32)p0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return which & 2u ? (which & 1u ? c3 : c2) : (which & 1u ? c1 : c0);
}

INLINE float gumbel(u32 word) { return (float)-log(-log(((double)word + 0.5) * 0x1p-32)); }

// Of the requests in this lane's columns, for rows g and g + 8 of a row block.
struct Draws {
  float temperature[ROW_TILES][2], noise[ROW_TILES][2][2];
};

// All 32 lanes call it. Lane l draws for row l % 16 of one of two requests at a time; then every lane takes what is its.
INLINE void draw(const Args& a, u32 step, Draws& draws, u32 block, u32 requests, u32 lane) {
  const u32 id = FIRST_ID(a) + block * 16 + (lane & 15);
#pragma unroll 1
  for (u32 pair = 0; pair < (MARKOV_REQUESTS + 1) / 2 && pair * 2 < requests; pair++) {
    const u32 request = pair * 2 + (lane >> 4);
    float temperature = 0.f, noise = 0.f;
    if (request < requests) {
      const int4 words = __ldg((const int4*)(a.step + STEP_DRAWS) + request);
      temperature = __int_as_float(words.x);
      const u32 position = (u32)fixed().step[STEP_POSITION + request] + step;
      if (temperature > 0.f) noise = gumbel(philox_word(id >> 2, position, (u32)words.y, (u32)words.z, id & 3));
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float t = __shfl_sync(~0u, temperature, c * 16);
      const float low = __shfl_sync(~0u, noise, c * 16 + (lane >> 2)), high = __shfl_sync(~0u, noise, c * 16 + 8 + (lane >> 2));
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++)
        if (n * 4 + (lane & 3) == pair) draws.temperature[n][c] = t, draws.noise[n][c][0] = low, draws.noise[n][c][1] = high;
    }
  }
}

INLINE float score(float logit, float temperature, float noise) {
  return temperature > 0.f ? __fadd_rn(usable(__fdiv_rn(logit, temperature)), noise) : usable(logit);
}
#endif
