// The stage before the layers: context K/V of new positions into the pool, and the embedded query block.
#pragma once
#include "heads.cuh"

INLINE void commit_context(const Args& a, u32 warp, u32 lane) {
  const u32 rows = fixed().step[STEP_CONTEXT];
  for (u32 unit = cta() + warp * ctas(); unit < rows * LAYERS * KV_HEADS; unit += EPILOGUE_WARPS * ctas()) {
    const u32 kv_head = unit % KV_HEADS, layer = unit / KV_HEADS % LAYERS, row = unit / (KV_HEADS * LAYERS);
    const u32 request = fixed().step[STEP_CONTEXT_REQUEST + row], position = fixed().step[STEP_CONTEXT_POSITION + row];
    const u32 page = a.pages[request * MAX_PAGES + position / PAGE];
    const u16* from = a.context_kv + (((u64)row * LAYERS + layer) * KV_PARTS * KV_HEADS + kv_head) * HEAD + lane * 4;
    const RawHead k = load_fresh_head(from), v = load_fresh_head(from + (KV_PARTS - 1) * KV_HEADS * HEAD);
    u16* to = a.pool + pool_rows(page, layer, 0, kv_head) + (position % PAGE) * HEAD + lane * 4;
    const Head factor = load_factor(a.head_norms + (layer * 2 + 1) * HEAD, lane);
    store_head((uint2*)to, packed(normed_and_turned(k, factor, a.rope + (u64)position * ROTARY_PAIRS, lane)));
#ifdef VALUE_NORM
    store_head((uint2*)(to + KV_HEADS * PAGE * HEAD), packed(normed(v)));
#else
    store_head((uint2*)(to + KV_HEADS * PAGE * HEAD), v);
#endif
  }
}

// Also clears the chain's floors. Row r is row r % BLOCK of request r / BLOCK: the anchor's embedding, then the mask's. Unused rows are zero.
INLINE void embed_block(const Args& a, u32 thread) {
  const u32 rows = fixed().step[STEP_REQUESTS] * BLOCK;
  if (cta() == 0)
    for (u32 i = thread; i < BLOCK * ROWS; i += EPILOGUE_THREADS) a.floors[i] = 0;
  for (u32 unit = cta() * EPILOGUE_THREADS + thread; unit < ROWS * HIDDEN_PADDED / 8; unit += ctas() * EPILOGUE_THREADS) {
    const u32 row = (unit >> 2) & (ROWS - 1), k = ((unit >> 2) / ROWS * 4 + (unit & 3)) * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < rows && k < HIDDEN) {
      const u32 token = row % BLOCK ? MASK_TOKEN : fixed().step[STEP_ANCHOR + row / BLOCK];
      v = __ldg((const uint4*)(a.embed + (u64)token * HIDDEN + k));
    }
    const u32 at = fragment(row, k, HIDDEN_PADDED * 16);
    *(uint4*)((u8*)a.residual + at) = v;
    const u32 pairs[4] = {v.x, v.y, v.z, v.w};
    u32 out[4];
    float square = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float low = low_bf16(pairs[i]), high = high_bf16(pairs[i]);
      const float2 f = __ldg((const float2*)(a.first_norm + k) + i);
      square += low * low + high * high;
      out[i] = pack_bf16(low * f.x * FEEDS_MX, high * f.y * FEEDS_MX);
    }
    *(uint4*)(a.hidden + at) = make_uint4(out[0], out[1], out[2], out[3]);
    square += __shfl_xor_sync(~0u, square, 1);
    if ((k & 15) == 0) a.squares[row * (HIDDEN_PADDED / 16) + (k >> 4)] = square;
  }
}
