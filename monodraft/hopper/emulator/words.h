// The words of device/*.cuh that are PTX there, under the same names. The build takes those functions out of a copy of the
// headers (build.py), so a new PTX word does not compile here until it stands below.
#pragma once
#include "cuda.h"

inline u32 opaque(u32 x) { return x; }

// ---- shared memory
inline uint4 load_shared16(u32 a) {
  emulator::touch();
  return *reinterpret_cast<uint4*>(emulator::shared_memory(a, 16, "load_shared16"));
}
inline void store_shared16(u32 a, uint4 v) {
  emulator::touch();
  *reinterpret_cast<uint4*>(emulator::shared_memory(a, 16, "store_shared16")) = v;
}
inline void store_shared8(u32 a, uint2 v) {
  emulator::touch();
  *reinterpret_cast<uint2*>(emulator::shared_memory(a, 8, "store_shared8")) = v;
}

struct Matrices {
  u32 address;
  uint4 value;
};
template <bool TRANSPOSED>
inline uint4 load_matrices(const char* word, u32 a) {
  const Matrices mine = emulator::collective(word, Matrices{a, {}}, [word](Matrices* const* lanes) {
    const u16* rows[32];
    for (u32 i = 0; i < 32; i++)
      rows[i] = reinterpret_cast<u16*>(emulator::shared_memory(lanes[i]->address, 16, word));
    for (u32 i = 0; i < 32; i++) {
      u32 words[4];
      for (u32 m = 0; m < 4; m++) {
        const u32 r = i / 4, c = i % 4 * 2;
        words[m] = TRANSPOSED ? rows[m * 8 + c][r] | u32(rows[m * 8 + c + 1][r]) << 16
                              : rows[m * 8 + r][c] | u32(rows[m * 8 + r][c + 1]) << 16;
      }
      lanes[i]->value = {words[0], words[1], words[2], words[3]};
    }
  });
  return mine.value;
}
inline uint4 load_matrix4(u32 a) { return load_matrices<false>("load_matrix4", a); }
inline uint4 load_matrix4_transposed(u32 a) { return load_matrices<true>("load_matrix4_transposed", a); }

// ---- global memory
inline u32 flag_at(const u32* p) {
  const emulator::Unwatched word;
  return *const_cast<const volatile u32*>(p);
}
inline u32 observed(const char* word, const u32* p, bool acquire) {
  emulator::poll(word, p, flag_at(p));
  const u32 value = flag_at(p);
  emulator::acquired_at(p, acquire);
  return value;
}
inline u32 load_relaxed(const u32* p) { return observed("load_relaxed", p, false); }
inline u32 load_acquire(const u32* p) { return observed("load_acquire", p, true); }
inline u32 load_acquire_system(const u32* p) { return observed("load_acquire_system", p, true); }
inline void store_flag(u32* p, u32 x, bool release) {
  atomically(p, [=](u32) { return x; });
  emulator::released_at(p, release, false);
}
inline void store_relaxed(u32* p, u32 x) { store_flag(p, x, false); }
inline void store_release_system(u32* p, u32 x) { store_flag(p, x, true); }
inline u32 add_release(u32* p, u32 x) { return updated(p, [=](u32 old) { return old + x; }, true); }
inline void copy_async16(u32 shared, const void* global) { emulator::copy_async(shared, global); }
inline void copy_async_wait() { emulator::copy_async_wait(); }
inline void prefetch_l2(const void*) {}
inline void fence_bulk_global() { emulator::touch(), emulator::fence_proxies(true); }
inline void fence_bulk_shared() { emulator::touch(), emulator::fence_proxies(false); }

// ---- mbarriers and bulk copies
inline void phase_init(u32 bar, u32 arrivals) { emulator::phase_init(bar, arrivals); }
inline void phase_init_fence() {}
inline void phase_expect(u32 bar, u32 bytes) { emulator::phase_expect(bar, bytes); }
inline void phase_arrive(u32 bar) { emulator::phase_arrive(bar); }
inline u32 phase_try(u32 bar, u32 parity) {
  if (emulator::phase_done(bar, parity)) return 1;
  emulator::cta().phase_waiters.push_back(emulator::current);
  emulator::wait_until_woken("phase_try", u64(bar) << 1 | parity);
  return emulator::phase_done(bar, parity);
}
inline u32 phase_test(u32 bar, u32 parity) {
  if (emulator::phase_done(bar, parity)) return 1;
  emulator::current->polled = nullptr;
  emulator::poll("phase_test", nullptr, emulator::current->polled_value);
  return emulator::phase_done(bar, parity);
}
inline void bulk_copy(u32 shared, const void* global, u32 bytes, u32 bar) {
  emulator::bulk_copy(shared, global, bytes, bar);
}
inline void bulk_copy_stream(u32 shared, const void* global, u32 bytes, u32 bar) { bulk_copy(shared, global, bytes, bar); }

inline void named_sync(u32 id, u32 threads) { emulator::named_barrier(id, threads, true); }
inline void named_arrive(u32 id, u32 threads) { emulator::named_barrier(id, threads, false); }
inline void let_next_launch_start() { emulator::let_next_launch_start(); }
inline void wait_previous_launch() { emulator::wait_previous_launch(); }
template <u32 COUNT>
inline void shrink_registers() { __syncwarp(); }
template <u32 COUNT>
inline void grow_registers() { __syncwarp(); }

// ---- numbers
inline float half_as_float(u32 h) {
  const u32 exponent = h >> 10 & 31u, fraction = h & 1023u;
  const float magnitude = exponent == 0    ? float(fraction) * 0x1p-24f
                          : exponent == 31 ? (fraction ? NAN : INFINITY)
                                           : same_bits<float>((exponent + 112u) << 23 | fraction << 13);
  return h & 0x8000u ? -magnitude : magnitude;
}
inline u32 float_as_half(float x) {  // to nearest, ties to even
  const u32 sign = same_bits<u32>(x) >> 16 & 0x8000u;
  const float size = std::fabs(x);
  if (x != x) return 0x7fffu;
  if (size >= 65520.f) return sign | 0x7c00u;
  if (size < 0x1p-14f) return sign | u32(std::lrint(size * 0x1p24f));
  const u32 bits = same_bits<u32>(size);
  return sign | ((bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13);
}
inline u32 float_as_bf16(float x) {  // to nearest, ties to even
  const u32 bits = same_bits<u32>(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline u32 pack_bf16(float low, float high) { return float_as_bf16(low) | float_as_bf16(high) << 16; }
inline u32 pack_f16(float low, float high) { return float_as_half(low) | float_as_half(high) << 16; }
inline u32 e4m3_as_half(u32 e) {
  const u32 sign = (e & 0x80u) << 8, exponent = e >> 3 & 15u, fraction = e & 7u;
  if ((e & 127u) == 127u) return 0x7fffu;
  return sign | (exponent ? (exponent + 8u) << 10 | fraction << 7 : float_as_half(float(fraction) * 0x1p-9f));
}
inline u32 convert_e4m3_low(u32 x) { return e4m3_as_half(x & 255u) | e4m3_as_half(x >> 8 & 255u) << 16; }
inline u32 convert_e4m3_high(u32 x) { return convert_e4m3_low(x >> 16); }
inline float fast_root(float x) { return std::sqrt(x); }

// ---- the matrix instruction: c[16][8] += a[16][16] b[16][8]. Products are exact in float32 (bf16: 16 bits, f16: 22); they are
// added one after another with k rising, each sum rounded to float32. A GPU adds in an order of its own.
typedef float Row __attribute__((vector_size(32)));
struct Product {
  float* c;
  u32 a[4], b[2];
};
template <float (*VALUE)(u32)>
inline void multiply_warp(Product* const* lanes) {
  float a[16][16];
  alignas(32) float b[16][8];
  Row c[16];
  for (u32 l = 0; l < 32; l++) {
    const Product& p = *lanes[l];
    const u32 g = l / 4, t = l % 4 * 2;
    for (u32 i = 0; i < 4; i++)
      for (u32 h = 0; h < 2; h++) a[g + i % 2 * 8][t + i / 2 * 8 + h] = VALUE(p.a[i] >> 16 * h & 0xffffu);
    for (u32 i = 0; i < 2; i++)
      for (u32 h = 0; h < 2; h++) b[t + i * 8 + h][g] = VALUE(p.b[i] >> 16 * h & 0xffffu);
    for (u32 i = 0; i < 4; i++) c[g + i / 2 * 8][t + i % 2] = p.c[i];
  }
  for (u32 m = 0; m < 16; m++)
    for (u32 k = 0; k < 16; k++) c[m] += a[m][k] * *reinterpret_cast<Row*>(b[k]);
  for (u32 l = 0; l < 32; l++)
    for (u32 i = 0; i < 4; i++) lanes[l]->c[i] = c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}
inline float bf16_as_float(u32 v) { return same_bits<float>(v << 16); }
inline void multiply_add(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulator::collective("multiply_add", Product{c, {a0, a1, a2, a3}, {b0, b1}}, multiply_warp<bf16_as_float>);
}
inline void multiply_add_f16(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulator::collective("multiply_add_f16", Product{c, {a0, a1, a2, a3}, {b0, b1}}, multiply_warp<half_as_float>);
}
