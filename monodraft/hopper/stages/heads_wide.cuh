// A head of several pieces of 128 dims, in a warp: lane l holds dims 128 j + 4 l .. + 3 in at[j].
#pragma once
#include "exchange.cuh"

struct RawHead {
  uint2 at[PIECES];
};
struct Head {
  float4 at[PIECES];
};
// Elements 4 i .. 4 i + 3 of a half, turned by the four turns at `turns`.
INLINE float4 rotate4(float4 own, float4 other, const float2* turns, bool first) {
  const float4* t = (const float4*)turns;
  const float4 t0 = t[0], t1 = t[1];
  return make_float4(rotate(own.x, other.x, make_float2(t0.x, t0.y), first), rotate(own.y, other.y, make_float2(t0.z, t0.w), first),
                     rotate(own.z, other.z, make_float2(t1.x, t1.y), first), rotate(own.w, other.w, make_float2(t1.z, t1.w), first));
}

INLINE RawHead packed(const Head& x) {
  RawHead raw;
#pragma unroll
  for (int j = 0; j < PIECES; j++) raw.at[j] = pack4(x.at[j]);
  return raw;
}

INLINE float square4(float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }
// To float32; rstd of its 1 / sqrt(mean square + eps).
INLINE Head unpacked(const RawHead& raw, float& rstd) {
  Head x;
#pragma unroll
  for (int j = 0; j < PIECES; j++) x.at[j] = unpack4(raw.at[j]);
  float sum = square4(x.at[0]);
#pragma unroll
  for (int j = 1; j < PIECES; j++) sum += square4(x.at[j]);
#pragma unroll
  for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
  rstd = rsqrtf(sum * (1.f / HEAD) + NORM_EPS);
  return x;
}

// x * rstd * f, then pairs (i, i + ROTARY_APART) turned by `turns` [ROTARY_PAIRS]. The second is whole pieces further: a lane has
// both elements.
INLINE Head normed_and_turned(const RawHead& raw, const Head& f, const float2* turns, u32 lane) {
  float rstd;
  Head x = unpacked(raw, rstd);
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    float4& v = x.at[j];
    v.x = v.x * rstd * f.at[j].x, v.y = v.y * rstd * f.at[j].y, v.z = v.z * rstd * f.at[j].z, v.w = v.w * rstd * f.at[j].w;
  }
#pragma unroll
  for (int j = 0; j < (ROTARY_PAIRS + 127) / 128; j++) {
    const u32 i = 128 * j + 4 * lane;
    if (i >= ROTARY_PAIRS) continue;
    const float4 one = x.at[j], two = x.at[j + ROTARY_APART / 128];
    x.at[j] = rotate4(one, two, turns + i, true), x.at[j + ROTARY_APART / 128] = rotate4(two, one, turns + i, false);
  }
  return x;
}

// x * rstd.
INLINE Head normed(const RawHead& raw) {
  float rstd;
  Head x = unpacked(raw, rstd);
#pragma unroll
  for (int j = 0; j < PIECES; j++) x.at[j].x *= rstd, x.at[j].y *= rstd, x.at[j].z *= rstd, x.at[j].w *= rstd;
  return x;
}

INLINE Head load_factor(const float* from, u32 lane) {
  Head f;
#pragma unroll
  for (int j = 0; j < PIECES; j++) f.at[j] = __ldg((const float4*)from + lane + j * 32);
  return f;
}
// A factor held over a stage: only where it is, registers are short.
using HeadFactor = const float*;
INLINE HeadFactor hold_factor(const float* from, u32 lane) { return from; }
INLINE Head factor_of(HeadFactor f, u32 lane) { return load_factor(f, lane); }
INLINE RawHead load_head(const uint2* from) {
  RawHead raw;
#pragma unroll
  for (int j = 0; j < PIECES; j++) raw.at[j] = from[j * 32];
  return raw;
}
INLINE RawHead load_fresh_head(const u16* from) {
  RawHead raw;
#pragma unroll
  for (int j = 0; j < PIECES; j++) raw.at[j] = load_fresh8(from + j * 128);
  return raw;
}
INLINE void store_head(uint2* to, const RawHead& raw) {
#pragma unroll
  for (int j = 0; j < PIECES; j++) to[j * 32] = raw.at[j];
}
