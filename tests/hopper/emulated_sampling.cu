// The draws of stages/sampling.cuh alone, for tests/hopper/test_sampled.py: noise of ids 0.. of one seed and position, then of
// given words.
#include "stages/sampling.cuh"

struct Given {
  const u32* words;
  float* noise;  // [ids + words]
  u32 ids, count, seed_low, seed_high, position, unused;
};

extern "C" __global__ void draft_step(const Given g) {
  for (u32 i = threadIdx.x; i < g.ids + g.count; i += blockDim.x)
    g.noise[i] = gumbel(i < g.ids ? philox_word(i >> 2, g.position, g.seed_low, g.seed_high, i & 3) : g.words[i - g.ids]);
}
