// The draws and scores of stages/sampling.cuh alone, for tests/hopper/test_sampled.py: noise of ids 0.. of one seed and position,
// then of given words; and scores of logits over a temperature, with noise[i] each.
#include "stages/sampling.cuh"

struct Given {
  const u32* words;
  const float* logits;
  float *noise, *scores;  // [ids + words], [ids]
  u32 ids, count, seed_low, seed_high, position;
  float temperature;
};

extern "C" __global__ void draft_step(const Given g) {
  for (u32 i = threadIdx.x; i < g.ids + g.count; i += blockDim.x) {
    const u32 word = i < g.ids ? philox_word(i >> 2, g.position, g.seed_low, g.seed_high, i & 3) : g.words[i - g.ids];
    g.noise[i] = gumbel(word);
    if (i < g.ids) g.scores[i] = score(g.logits[i], g.temperature, g.noise[i]);
  }
}
