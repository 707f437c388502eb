// Device words: the bf16 matrix instruction, e4m3 widened to bf16, bf16 pairs.
#pragma once
#include "memory.cuh"

// c[16][8] += a[16][16] b[16][8]. Lane 4 g + t holds c at rows g (c0, c1) and g + 8 (c2, c3), columns 2 t, 2 t + 1.
INLINE void multiply_add(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with float16 operands.
INLINE void multiply_add_f16(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Two e4m3 bytes, the lower or the upper half of a word, to two float16, exactly.
INLINE u32 convert_e4m3_low(u32 x) {
  u32 r;
  asm("{ .reg .b16 l,h; mov.b32 {l,h},%1; cvt.rn.f16x2.e4m3x2 %0,l; }" : "=r"(r) : "r"(x));
  return r;
}
INLINE u32 convert_e4m3_high(u32 x) {
  u32 r;
  asm("{ .reg .b16 l,h; mov.b32 {l,h},%1; cvt.rn.f16x2.e4m3x2 %0,h; }" : "=r"(r) : "r"(x));
  return r;
}
INLINE u32 pack_f16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Four e4m3 bytes to two pairs of bf16, each 2^-120 times the value: exponent and mantissa move into place and e4m3's
// subnormals become bf16's, so no rounding and no conversion instruction. Bytes 1 and 3 make `odd`, 0 and 2 `even`.
// Who multiplies folds 2^120 back in: activations carry 2^64 (exact), block scales the rest.
INLINE void widen_e4m3(u32 x, u32& odd, u32& even) {
  u32 y = x << 8;
  odd = (x & 0x80008000u) | ((x >> 4) & 0x07f007f0u);
  even = (y & 0x80008000u) | ((y >> 4) & 0x07f007f0u);
}
#define ACTIVATION_SCALE 18446744073709551616.0f  // 2^64
#define SCALE_EXPONENT (56u << 23)                // 120 - 64: what the block scales carry
INLINE float block_scale(u32 packed, u32 byte) {
  return __uint_as_float((((packed >> (8 * byte)) & 255u) << 23) + SCALE_EXPONENT);
}

INLINE float plain_scale(u32 packed, u32 byte) { return __uint_as_float(((packed >> (8 * byte)) & 255u) << 23); }

INLINE u32 pack_bf16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
INLINE float low_bf16(u32 v) { return __uint_as_float(v << 16); }
INLINE float high_bf16(u32 v) { return __uint_as_float(v & 0xffff0000u); }
INLINE float fast_root(float x) {  // relative error below 2^-20
  float r;
  asm("sqrt.approx.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}
INLINE float round_bf16(float x) { return low_bf16(pack_bf16(x, 0.f) & 0xffffu); }
