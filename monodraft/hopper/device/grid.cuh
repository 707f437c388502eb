// Which CTA this is. A launch is one rank's grid, or RANKS rank groups of GRID CTAs each on one GPU, one after another.
#pragma once
#include "memory.cuh"

#ifndef RANKS
#define RANKS 1
#endif

#if RANKS > 1
INLINE u32 rank_group() { return blockIdx.x / GRID; }
INLINE u32 cta() { return blockIdx.x - rank_group() * GRID; }
INLINE u32 ctas() { return GRID; }
#else
INLINE u32 cta() { return blockIdx.x; }
INLINE u32 ctas() { return gridDim.x; }
#endif
