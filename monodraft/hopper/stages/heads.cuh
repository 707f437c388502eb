// Per-head RMSNorm and RoPE of one head by one warp; lane l holds dims 4 l .. 4 l + 3 (of every piece of 128).
#pragma once
#include "exchange.cuh"

INLINE float4 unpack4(uint2 v) { return make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y)); }
INLINE uint2 pack4(float4 v) { return make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)); }

// One element of a rotated pair: products and sum rounded one by one, as the reference does.
INLINE float rotate(float own, float other, float2 turn, bool first) {
  float a = __fmul_rn(own, turn.x), b = __fmul_rn(other, turn.y);
  return first ? __fsub_rn(a, b) : __fadd_rn(a, b);
}

#if PIECES > 1
#include "heads_wide.cuh"
#else
using RawHead = uint2;  // in bf16
using Head = float4;
INLINE Head load_factor(const float* from, u32 lane) { return __ldg((const float4*)from + lane); }
// A factor held over a stage: in registers.
using HeadFactor = Head;
INLINE HeadFactor hold_factor(const float* from, u32 lane) { return load_factor(from, lane); }
INLINE Head factor_of(HeadFactor f, u32 lane) { return f; }
INLINE RawHead load_head(const uint2* from) { return *from; }
INLINE RawHead load_fresh_head(const u16* from) { return load_fresh8(from); }
INLINE void store_head(uint2* to, RawHead raw) { *to = raw; }
INLINE RawHead packed(Head x) { return pack4(x); }

// bf16 head -> float32: x * rstd * f, then pairs (i, i + ROTARY_APART) turned by `turns` [ROTARY_PAIRS].
INLINE float4 normed_and_turned(uint2 head, float4 f, const float2* turns, u32 lane) {
  float4 x = unpack4(head);
  float sum = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
#pragma unroll
  for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
  const float rstd = rsqrtf(sum * (1.f / HEAD) + NORM_EPS);
  x.x = x.x * rstd * f.x, x.y = x.y * rstd * f.y, x.z = x.z * rstd * f.z, x.w = x.w * rstd * f.w;
  constexpr u32 LANES = ROTARY_PAIRS / 4, APART = ROTARY_APART / 4;  // lanes that hold the first elements; how far the second are
  const bool first = lane < LANES, turned = APART == LANES ? lane < 2 * LANES : first | (lane - APART < LANES);
  const u32 partner = first ? lane + APART : turned ? lane - APART : lane;
  float4 o;
  o.x = __shfl_sync(~0u, x.x, partner), o.y = __shfl_sync(~0u, x.y, partner);
  o.z = __shfl_sync(~0u, x.z, partner), o.w = __shfl_sync(~0u, x.w, partner);
  if (!turned) return x;
  const float4* t = (const float4*)(turns + (first ? lane : partner) * 4);
  const float4 t0 = t[0], t1 = t[1];
  return make_float4(rotate(x.x, o.x, make_float2(t0.x, t0.y), first), rotate(x.y, o.y, make_float2(t0.z, t0.w), first),
                     rotate(x.z, o.z, make_float2(t1.x, t1.y), first), rotate(x.w, o.w, make_float2(t1.z, t1.w), first));
}

// x * rstd.
INLINE float4 normed(uint2 head) {
  const float4 x = unpack4(head);
  float sum = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
#pragma unroll
  for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
  const float rstd = rsqrtf(sum * (1.f / HEAD) + NORM_EPS);
  return make_float4(x.x * rstd, x.y * rstd, x.z * rstd, x.w * rstd);
}
#endif

// First element of a page's K (which 0) or V (1) rows of one layer and KV head.
INLINE u64 pool_rows(u32 page, u32 layer, u32 which, u32 kv_head) {
  return ((((u64)page * LAYERS + layer) * 2 + which) * KV_HEADS + kv_head) * (PAGE * HEAD);
}
