// One small kernel a `mode`, for tests/hopper/test_emulated_words.py. `in` and `out` belong to the whole grid.
#include "device/matrix.cuh"
#include "device/waits.cuh"

struct Args {
  const u32* in;
  u32* out;
  u32* counter;  // zero at the start
  u64 mode;
};

extern __shared__ __align__(128) u8 dynamic[];

// out [32][4]: c of in [32][6] (a, b) on top of in's next [32][4].
INLINE void multiply(const Args& a, u32 lane, bool half) {
  const u32* p = a.in + lane * 6;
  const float* from = (const float*)a.in + 192 + lane * 4;
  float c[4] = {from[0], from[1], from[2], from[3]};
  if (half) multiply_add_f16(c, p[0], p[1], p[2], p[3], p[4], p[5]);
  else multiply_add(c, p[0], p[1], p[2], p[3], p[4], p[5]);
  for (u32 i = 0; i < 4; i++) ((float*)a.out)[lane * 4 + i] = c[i];
}

// out [2][32][4]: both ldmatrix of in [4][8][8] 16-bit elements.
INLINE void matrices(const Args& a, u32 lane) {
  const u32 base = shared_address(dynamic);
  store_shared16(base + lane * 16, *(const uint4*)(a.in + lane * 4));
  __syncwarp();
  ((uint4*)a.out)[lane] = load_matrix4(base + lane * 16);
  ((uint4*)a.out)[32 + lane] = load_matrix4_transposed(base + lane * 16);
}

// A ring of one slot: warp 1 lets `in` [8][32] through it, warp 0 adds what it sees to out [32].
INLINE void stream(const Args& a, u32 warp, u32 lane) {
  const u32 full = shared_address(dynamic), empty = full + 8, slot = full + 128;
  if (threadIdx.x == 0) phase_init(full, 1), phase_init(empty, 32);
  phase_init_fence();
  __syncthreads();
  for (u32 i = 0; i < 8; i++) {
    if (warp == 1 && lane == 0) {
      while (!phase_test(empty, (i & 1u) ^ 1u)) {}
      phase_expect(full, 128);
      bulk_copy(slot, a.in + i * 32, 128, full);
    }
    if (warp == 0) {
      while (!phase_try(full, i & 1u)) {}
      a.out[lane] += ((const u32*)(dynamic + 128))[lane];
      phase_arrive(empty);
    }
  }
}

__attribute__((noinline)) void deep() {
  volatile u8 big[80 << 10];
  for (u32 i = 0; i < sizeof big; i += 8) big[i] = 1;
  __syncwarp();
}

INLINE void wrong(const Args& a, u32 warp, u32 lane) {
  const u32 base = shared_address(dynamic), thread = threadIdx.x;
  switch ((u32)a.mode) {
    case 20: named_sync(1 + warp, 64); break;                                   // two barriers, each waiting for two warps
    case 21: if (lane < 16) __syncwarp(); else __ballot_sync(~0u, true); break;
    case 22: load_shared16(base + 4096); break;
    case 23: if (lane == 0) phase_init(base, 1), phase_expect(base, 16), phase_arrive(base); break;  // one arrival too many
    case 24: a.out[1ull << 40] = 1; break;
    case 25: while (!load_acquire(a.counter)) {} break;
    case 26: phase_test(base + 64 + 8 * thread, 0); break;                      // holds no mbarrier
    case 27:
      if (thread == 0) phase_init(base, 1), phase_expect(base, 16), bulk_copy(base + 16, a.in, 16, base);
      break;                                                                    // nobody waits for the copy
    case 28: if (thread == 0) phase_init(base, 1), bulk_copy(base + 16, a.in + 1, 16, base); break;
    case 29: copy_async16(base, a.in); break;
    case 30: named_sync(1, 96 - 32 * warp); break;                              // counts differ
    case 31: deep(); break;
  }
}

// Exchanges with and without what orders them; in[0] says which. Data in shared memory or out[64..].
INLINE void exchange(const Args& a, u32 warp, u32 lane) {
  u32* shared = (u32*)dynamic;
  u32* data = a.out + 64;
  const u32 bar = shared_address(dynamic) + 2048, which = a.in[0];
  const bool release = which != 6 && which != 7, acquire = which != 5 && which != 7;
  switch (which) {
    case 0: case 1:  // from warp 0 to warp 1
      if (warp == 0) shared[lane] = 1;
      if (which == 0) named_sync(1, 64);
      if (warp == 1) a.out[lane] = shared[lane];
      break;
    case 2: case 3:  // between lanes of a warp
      if (warp) break;
      shared[lane] = 1;
      if (which == 2) __syncwarp();
      a.out[lane] = shared[lane ^ 1];
      break;
    case 4: case 5: case 6: case 7: case 8:  // from CTA 0 to CTA 1 by a flag; 7: with fences instead, 8: by way of __ldg
      if (threadIdx.x) break;
      if (blockIdx.x == 0) {
        data[0] = 1;
        if (which == 7) __threadfence();
        if (release) add_release(a.counter, 1);
        else atomicAdd(a.counter, 1u);
      } else {
        while (!(acquire ? load_acquire(a.counter) : load_relaxed(a.counter))) {}
        if (which == 7) __threadfence();
        a.out[0] = which == 8 ? __ldg(data) : data[0];
      }
      break;
    case 9: case 10: case 11:  // a bulk copy of what this lane has stored, over what it has stored
      if (threadIdx.x) break;
      phase_init(bar, 1);
      *(uint4*)data = make_uint4(1, 1, 1, 1);
      store_shared16(shared_address(dynamic), make_uint4(0, 0, 0, 0));
      if (which != 10) fence_bulk_global();
      if (which != 11) fence_bulk_shared();
      phase_expect(bar, 16);
      bulk_copy(shared_address(dynamic), data, 16, bar);
      while (!phase_try(bar, 0)) {}
      a.out[0] = shared[0];
      break;
    case 12:  // what a copy brought, read by a lane that did not wait for it
      if (threadIdx.x == 0) phase_init(bar, 1);
      named_sync(1, 64);
      if (threadIdx.x == 0) {
        phase_expect(bar, 16);
        bulk_copy(shared_address(dynamic), a.in, 16, bar);
        while (!phase_try(bar, 0)) {}
      }
      if (threadIdx.x == 32) a.out[0] = shared[0];
      break;
  }
}

extern "C" __global__ void draft_step(const __grid_constant__ Args a) {
  const u32 thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  switch ((u32)a.mode) {
    case 0: multiply(a, lane, false); break;
    case 1: multiply(a, lane, true); break;
    case 2: matrices(a, lane); break;
    case 3: stream(a, warp, lane); break;
    case 4:  // out [32][4]: shuffles and a ballot
      ((uint4*)a.out)[lane] = make_uint4(__shfl_sync(~0u, a.in[lane], 7), __shfl_xor_sync(~0u, a.in[lane], 5),
                                         (u32)(__shfl_sync(~0u, (u64)a.in[lane] << 32, (lane + 1) & 31) >> 32),
                                         __ballot_sync(~0u, a.in[lane] & 1u));
      break;
    case 5:  // out [256][4]: conversions of in [256]
      ((uint4*)a.out)[thread] = make_uint4(convert_e4m3_low(thread), convert_e4m3_high(thread << 16 | thread << 24),
                                           pack_bf16(__uint_as_float(a.in[thread]), 1.f), pack_f16(__uint_as_float(a.in[thread]), 1.f));
      break;
    case 6:  // every CTA waits for all others, twice; out [CTA]: how many had arrived
      for (u32 round = 1; round <= 2; round++) {
        if (thread == 0) {
          add_release(a.counter, 1);
          while (load_acquire(a.counter) < round * gridDim.x) {}
          a.out[blockIdx.x] = load_relaxed(a.counter);
        }
        __syncthreads();
      }
      break;
    case 7:  // out [thread]: 1 where a cp.async's data was there before its wait, with the right data after it
      store_shared16(shared_address(dynamic) + thread * 16, make_uint4(0, 0, 0, 0));
      copy_async16(shared_address(dynamic) + thread * 16, a.in);
      a.out[thread] = ((const u32*)dynamic)[thread * 4] != 0;
      copy_async_wait();
      a.out[thread] |= (((const u32*)dynamic)[thread * 4] == a.in[0]) << 1;
      break;
    case 8: {  // the CTA's number and clock64 before and after a wait that nobody ends: cycles pass
      const long long start = clock64();
      while (clock64() - start < 40000 && !load_acquire(a.counter)) {}
      if (thread == 0) a.out[blockIdx.x] = clock64() - start >= 40000;
      break;
    }
    case 10:  // waits for six CTAs, of two grids; out [CTA]: how many have come
      if (thread == 0) {
        add_release(a.counter, 1);
        while (load_acquire(a.counter) < 6) {}
        a.out[blockIdx.x] = load_relaxed(a.counter);
      }
      break;
    case 11:  // the first of a chain: counts its CTAs after it has let the next one start
      let_next_launch_start();
      for (u32 i = 0; i < 100; i++) __syncwarp();
      if (thread == 0) add_release(a.counter, 1);
      break;
    case 12:  // the second: out [CTA]: what the first has counted when its end was waited for
      wait_previous_launch();
      if (thread == 0) a.out[blockIdx.x] = load_relaxed(a.counter);
      break;
    case 13: exchange(a, warp, lane); break;
    default: wrong(a, warp, lane);
  }
}
