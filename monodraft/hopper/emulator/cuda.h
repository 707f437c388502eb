// What CUDA C++ brings along: vector types, qualifiers, built-in variables and functions.
#pragma once
#include <cmath>
#include <cstring>

#include "machine.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)
#define __shared__
// `extern __shared__ u8 dynamic[];` becomes the declaration of a function that gives the CTA's own array.
#define dynamic (*emulated_shared())

typedef emulator::u8 u8;
typedef emulator::u16 u16;
typedef emulator::u32 u32;
typedef emulator::u64 u64;

struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint3 { u32 x, y, z; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline u8 (*emulated_shared())[] { return reinterpret_cast<u8(*)[]>(emulator::cta().shared); }
#define threadIdx (uint3{emulator::current->thread, 0, 0})
#define blockIdx (uint3{emulator::cta().index, 0, 0})
#define blockDim (uint3{emulator::cta().threads, 1, 1})
#define gridDim (uint3{emulator::cta().grid->ctas, 1, 1})

inline int min(int a, int b) { return a < b ? a : b; }
inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline u32 min(u32 a, int b) { return min(a, u32(b)); }
inline u32 min(int a, u32 b) { return min(u32(a), b); }
inline int max(int a, int b) { return a > b ? a : b; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline u32 max(u32 a, int b) { return max(a, u32(b)); }
inline u32 max(int a, u32 b) { return max(u32(a), b); }

template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(u32 x) { return same_bits<float>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline u32 __float_as_uint(float x) { return same_bits<u32>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }

// ---- memory
inline u32 __cvta_generic_to_shared(const void* p) {
  const std::ptrdiff_t at = static_cast<const u8*>(p) - emulator::cta().shared;
  if (at < 0 || at > std::ptrdiff_t(emulator::cta().grid->shared_bytes))
    emulator::fail("shared_address of %p, not shared memory", p);
  return u32(at) + emulator::SHARED_BASE;
}
template <class T>
inline T __ldcg(const T* p) {
  emulator::touch();
  if (reinterpret_cast<std::uintptr_t>(p) % alignof(T)) emulator::fail("__ldcg of %p, not a multiple of %zu", p, alignof(T));
  return *p;
}
template <class T>
inline T __ldg(const T* p) {
  emulator::read_only_access(p, sizeof(T));
  return __ldcg(p);
}

// An atomic changes memory as others see it at once: there is one coherent memory.
template <class T, class F>
inline T atomically(T* p, F change) {
  emulator::touch();
  const emulator::Unwatched word;
  const T old = *p;
  const T now = change(old);
  if (now != old) emulator::something_happened();
  *p = now;
  return old;
}
// A read-modify-write of a flag, relaxed or with release.
template <class T, class F>
inline T updated(T* p, F change, bool release) {
  const T old = atomically(p, change);
  emulator::released_at(p, release, true);
  return old;
}
inline u32 atomicCAS(u32* p, u32 compare, u32 value) {
  return updated(p, [=](u32 old) { return old == compare ? value : old; }, false);
}
inline u32 atomicAdd(u32* p, u32 x) { return updated(p, [=](u32 old) { return old + x; }, false); }
inline u64 atomicAdd(u64* p, u64 x) { return updated(p, [=](u64 old) { return old + x; }, false); }
inline u32 atomicMax(u32* p, u32 x) { return updated(p, [=](u32 old) { return old > x ? old : x; }, false); }
inline u64 atomicMax(u64* p, u64 x) { return updated(p, [=](u64 old) { return old > x ? old : x; }, false); }
inline void __threadfence_block() { emulator::touch(); }
inline void __threadfence() { emulator::touch(), emulator::fence_threads(); }
inline void __threadfence_system() { __threadfence(); }
inline long long clock64() { return (long long)emulator::clock_now(); }

// ---- words of a warp, always all 32 lanes; of a CTA
inline void check_mask(u32 mask, const char* word) {
  if (mask != ~0u) emulator::fail("%s: mask %#x, the emulator knows whole warps only", word, mask);
}
struct Shuffled {
  u64 value;
  u32 source;
};
template <class T>
inline T shuffle(const char* word, T value, u32 source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  Shuffled mine = {0, source % emulator::LANES};
  std::memcpy(&mine.value, &value, sizeof value);
  mine = emulator::collective(word, mine, [](Shuffled* const* lanes) {
    u64 values[emulator::LANES];
    for (u32 i = 0; i < emulator::LANES; i++) values[i] = lanes[i]->value;
    for (u32 i = 0; i < emulator::LANES; i++) lanes[i]->value = values[lanes[i]->source];
  });
  std::memcpy(&value, &mine.value, sizeof value);
  return value;
}
template <class T>
inline T __shfl_sync(u32 mask, T value, int source) {
  check_mask(mask, "__shfl_sync");
  return shuffle("__shfl_sync", value, u32(source));
}
template <class T>
inline T __shfl_xor_sync(u32 mask, T value, int other) {
  check_mask(mask, "__shfl_xor_sync");
  return shuffle("__shfl_xor_sync", value, emulator::current->thread ^ u32(other));
}
inline u32 __ballot_sync(u32 mask, bool vote) {
  check_mask(mask, "__ballot_sync");
  return emulator::collective("__ballot_sync", u32(vote), [](u32* const* lanes) {
    u32 votes = 0;
    for (u32 i = 0; i < emulator::LANES; i++) votes |= *lanes[i] << i;
    for (u32 i = 0; i < emulator::LANES; i++) *lanes[i] = votes;
  });
}
inline bool __any_sync(u32 mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(u32 mask, bool vote) { return __ballot_sync(mask, vote) == ~0u; }
inline void __syncwarp(u32 mask = ~0u) {
  check_mask(mask, "__syncwarp");
  emulator::collective("__syncwarp", 0u, [](u32* const*) {});
  emulator::lanes_met();
}
inline void __syncthreads() { emulator::named_barrier(0, emulator::cta().threads, true); }
