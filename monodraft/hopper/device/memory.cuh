// Device words: shared and global memory, bulk copies, mbarriers, named barriers. They know nothing of the model.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define INLINE __device__ __forceinline__
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// The same number, of which the compiler knows nothing: what is computed from it stays where it is needed, instead of being
// hoisted over all stages into registers that are then spilled.
INLINE u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// A number that is the same in all lanes of a warp, so that loops over it need no care for divergence.
INLINE u32 uniform(u32 x) { return __shfl_sync(~0u, x, 0); }

INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- shared memory, by 32-bit address
INLINE uint4 load_shared16(u32 a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
  return v;
}
INLINE void store_shared16(u32 a, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE void store_shared8(u32 a, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory");
}
// 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
INLINE uint4 load_matrix4(u32 a) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
  return v;
}
INLINE uint4 load_matrix4_transposed(u32 a) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
  return v;
}

// ---- global memory written by other CTAs of this launch: read at L2, L1 is not coherent
INLINE uint4 load_fresh16(const void* p) { return __ldcg((const uint4*)p); }
INLINE uint2 load_fresh8(const void* p) { return __ldcg((const uint2*)p); }
INLINE u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
INLINE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
INLINE void store_relaxed(u32* p, u32 x) { asm volatile("st.relaxed.gpu.global.u32 [%0],%1;" ::"l"(p), "r"(x) : "memory"); }
// Across GPUs.
INLINE u32 load_acquire_system(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
INLINE void store_release_system(u32* p, u32 x) { asm volatile("st.release.sys.global.u32 [%0],%1;" ::"l"(p), "r"(x) : "memory"); }
INLINE u32 add_release(u32* p, u32 x) {
  u32 v;
  asm volatile("atom.add.release.gpu.global.u32 %0,[%1],%2;" : "=r"(v) : "l"(p), "r"(x) : "memory");
  return v;
}
INLINE void copy_async16(u32 shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared), "l"(global) : "memory");
}
INLINE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
INLINE void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Orders this thread's global writes before later bulk copies of the same data, on either side of a release/acquire.
// The unqualified form costs two MEMBARs (520-600 cycles measured); this one is a single light instruction.
INLINE void fence_bulk_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
INLINE void fence_bulk_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- mbarriers and the bulk copy that completes on one
INLINE void phase_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
INLINE void phase_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
INLINE void phase_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
INLINE void phase_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
INLINE u32 phase_try(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0,1,0,p; }"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}
INLINE u32 phase_test(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0,1,0,p; }"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}
// `stream`: data read once, evict first; otherwise the default policy.
INLINE void bulk_copy_stream(u32 shared, const void* global, u32 bytes, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(bar), "l"(0x12F0000000000000ull) : "memory");
}
INLINE void bulk_copy(u32 shared, const void* global, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(bar) : "memory");
}

// ---- named barriers of the CTA
INLINE void named_sync(u32 id, u32 threads) { asm volatile("barrier.cta.sync %0,%1;" ::"r"(id), "r"(threads) : "memory"); }
INLINE void named_arrive(u32 id, u32 threads) {
  asm volatile("barrier.cta.arrive %0,%1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- programmatic dependent launch; both do nothing in a launch without that attribute
INLINE void let_next_launch_start() { asm volatile("griddepcontrol.launch_dependents;"); }
INLINE void wait_previous_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- registers per thread of this warpgroup from here on; all its warps call it
template <u32 COUNT>
INLINE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <u32 COUNT>
INLINE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
