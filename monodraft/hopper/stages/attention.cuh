// Attention of the block over the pool and itself: KV heads x key ranges spread over the grid, K and V read once per
// block (all query heads of a KV head and all rows at once), then a combine of the ranges.
//
// Query row m of an item is (row j, head h of the group) = (m / GROUP, m % GROUP); M_ROWS of them at a time, so that their
// sums stay in registers. Keys are numbered 0..T-1: the context from the window's lower edge, then the block. Scratch lies
// where activations lie.
#pragma once
#include "heads.cuh"

#define M_ROWS (M_TILES * 16)
#define KEY_STRIDE 272                      // bytes of a row of 128 bf16, padded against bank conflicts
#define SCORE_STRIDE ((KEYS + 4) * 4)       // bytes of a row of scores; P overwrites them as bf16
#define QUERY_AT 0
#define KEY_AT (M_ROWS * KEY_STRIDE)
#define VALUE_AT (KEY_AT + KEYS * KEY_STRIDE)
#define SCORE_AT (VALUE_AT + KEYS * KEY_STRIDE)
#define STATS_AT (SCORE_AT + M_ROWS * SCORE_STRIDE)  // maximum, sum, factor: float [M_ROWS] each
#define M_GROUPS ((BLOCK * GROUP + M_ROWS - 1) / M_ROWS)
#define M_ALL (M_GROUPS * M_ROWS)

struct Keys {
  u32 low, context, total, per, ranges;  // first position, keys from the pool, all keys, keys per range, ranges in use
};
// The same split for everyone: as many ranges as the grid has room for, of a multiple of 16 keys.
INLINE Keys split_keys(const Args& a, u32 request, u32 window, u32 splits) {
  const u32 position = a.step[STEP_POSITION + request];
  Keys k;
  k.low = window && position >= window ? position - window + 1 : 0;
  k.context = position - k.low;
  k.total = k.context + BLOCK;
  k.per = ((k.total + splits - 1) / splits + 15) / 16 * 16;
  k.ranges = (k.total + k.per - 1) / k.per;
  return k;
}
INLINE u32 key_splits(const Args& a) {
  const u32 units = (u32)a.step[STEP_REQUESTS] * KV_HEADS;
  return max(1u, gridDim.x / max(units, 1u));
}

INLINE void load_queries(const Args& a, u32 layer, u32 request, u32 kv_head, u32 m_group, u32 base, u32 warp, u32 lane) {
  constexpr u32 EACH = M_ROWS / EPILOGUE_WARPS;
  const float* factor = a.head_norms + layer * 2 * HEAD;
  const u32 position = a.step[STEP_POSITION + request];
  uint2 heads[EACH];
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    const u32 m = m_group * M_ROWS + warp * EACH + i, row = m / GROUP;
    heads[i] = make_uint2(0, 0);
    if (row < BLOCK)
      heads[i] = load_fresh8(a.qkv + (u64)(request * BLOCK + row) * QKV_SIZE + (kv_head * GROUP + m % GROUP) * HEAD + lane * 4);
  }
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    const u32 row = min((m_group * M_ROWS + warp * EACH + i) / GROUP, (u32)BLOCK - 1);
    const float4 q = normed_and_turned(heads[i], factor, a.rope + (u64)(position + row) * ROTARY_PAIRS, lane);
    store_shared8(base + QUERY_AT + (warp * EACH + i) * KEY_STRIDE + lane * 8, pack4(q));
  }
}

// Keys from..to (at most KEYS of them) of the request to shared memory; what lies past `to` becomes zero.
INLINE void start_keys(const Args& a, const Keys& keys, u32 layer, u32 request, u32 kv_head, u32 from, u32 to, u32 base, u32 thread) {
  for (u32 i = thread; i < 2 * KEYS * 16; i += EPILOGUE_THREADS) {
    const u32 which = i / (KEYS * 16), n = i / 16 % KEYS, unit = i % 16, key = from + n;
    const u32 at = base + (which ? VALUE_AT : KEY_AT) + n * KEY_STRIDE + unit * 16;
    if (key >= to) {
      store_shared16(at, make_uint4(0, 0, 0, 0));
    } else if (key < keys.context) {
      const u32 position = keys.low + key, page = a.pages[request * MAX_PAGES + position / PAGE];
      copy_async16(at, a.pool + pool_rows(page, layer, which, kv_head) + (position % PAGE) * HEAD + unit * 8);
    } else if (which) {
      copy_async16(at, a.qkv + (u64)(request * BLOCK + key - keys.context) * QKV_SIZE + (HEADS + KV_HEADS + kv_head) * HEAD + unit * 8);
    }
  }
}
INLINE void load_block_keys(const Args& a, const Keys& keys, u32 layer, u32 request, u32 kv_head, u32 from, u32 to, u32 base, u32 warp, u32 lane) {
  const float* factor = a.head_norms + (layer * 2 + 1) * HEAD;
  for (u32 key = max(from, keys.context) + warp; key < to; key += EPILOGUE_WARPS) {
    const u32 row = key - keys.context;
    const uint2 head = load_fresh8(a.qkv + (u64)(request * BLOCK + row) * QKV_SIZE + (HEADS + kv_head) * HEAD + lane * 4);
    const float4 k = normed_and_turned(head, factor, a.rope + (u64)(keys.low + keys.context + row) * ROTARY_PAIRS, lane);
    store_shared8(base + KEY_AT + (key - from) * KEY_STRIDE + lane * 8, pack4(k));
  }
}

// Scores of 8 keys a warp at a time, float32, in shared memory; hidden ones are -inf.
INLINE void scores(u32 base, u8* scratch, const Keys& keys, u32 m_first, u32 from, u32 to, u32 window, u32 warp, u32 lane) {
  for (u32 block = warp; block < KEYS / 8; block += EPILOGUE_WARPS) {
    uint4 b[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      b[k] = load_matrix4(base + KEY_AT + (block * 8 + (lane & 7)) * KEY_STRIDE + k * 64 + (lane >> 3) * 16);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
      float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const uint4 q = load_matrix4(base + QUERY_AT + (m * 16 + (lane & 15)) * KEY_STRIDE + k * 32 + (lane >> 4) * 16);
        const uint4 w = b[k >> 1];
        multiply_add(c, q.x, q.y, q.z, q.w, k & 1 ? w.z : w.x, k & 1 ? w.w : w.y);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 row = m * 16 + half * 8 + (lane >> 2), column = block * 8 + (lane & 3) * 2;
        float out[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const u32 key = from + column + i;
          const u32 distance = keys.context + (m_first + row) / GROUP - key;  // query position - key position, wrapping
          const bool seen = key < to && (!window || (int)distance < (int)window && (int)distance > -(int)window);
          out[i] = seen ? c[half * 2 + i] * SCORE_SCALE : -INFINITY;
        }
        *(float2*)(scratch + SCORE_AT + row * SCORE_STRIDE + column * 4) = make_float2(out[0], out[1]);
      }
    }
  }
}

// Online softmax, a warp a row: P = bf16(exp(score - maximum)) over the scores, and by how much earlier sums shrink.
INLINE void soften(u8* scratch, float* stats, bool first, u32 warp, u32 lane) {
  constexpr u32 EACH = KEYS / 32;
  for (u32 row = warp; row < M_ROWS; row += EPILOGUE_WARPS) {
    float* from = (float*)(scratch + SCORE_AT + row * SCORE_STRIDE) + lane * EACH;
    float s[EACH], top = -INFINITY, sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) s[i] = from[i], top = fmaxf(top, s[i]);
#pragma unroll
    for (int m = 16; m; m >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, m));
    const float old = first ? -INFINITY : stats[row], now = fmaxf(old, top), shift = now == -INFINITY ? 0.f : now;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) s[i] = __expf(s[i] - shift), sum += s[i];
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
    const float factor = __expf(old - shift);
    __syncwarp();  // the row is in registers before P overwrites it
    u32* to = (u32*)(scratch + SCORE_AT + row * SCORE_STRIDE) + lane * (EACH / 2);
#pragma unroll
    for (u32 i = 0; i < EACH / 2; i++) to[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    if (lane == 0) {
      const float before = first ? 0.f : stats[M_ROWS + row] * factor;
      stats[row] = now, stats[M_ROWS + row] = before + sum, stats[2 * M_ROWS + row] = factor;
    }
  }
}

INLINE void weigh_values(u32 base, const float* stats, float (*out)[2][4], bool first, u32 warp, u32 lane) {
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
    const float low = first ? 0.f : stats[2 * M_ROWS + m * 16 + (lane >> 2)];
    const float high = first ? 0.f : stats[2 * M_ROWS + m * 16 + 8 + (lane >> 2)];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      if (first) out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.f;
      else out[m][n][0] *= low, out[m][n][1] *= low, out[m][n][2] *= high, out[m][n][3] *= high;
    }
  }
#pragma unroll 2
  for (int k = 0; k < KEYS / 16; k++) {
    const uint4 v = load_matrix4_transposed(base + VALUE_AT + (k * 16 + (lane & 15)) * KEY_STRIDE + warp * 32 + (lane >> 4) * 16);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
      const uint4 p = load_matrix4(base + SCORE_AT + (m * 16 + (lane & 15)) * SCORE_STRIDE + k * 32 + (lane >> 4) * 16);
      multiply_add(out[m][0], p.x, p.y, p.z, p.w, v.x, v.y);
      multiply_add(out[m][1], p.x, p.y, p.z, p.w, v.z, v.w);
    }
  }
}

// Stores the sums of M_ROWS query rows over one range of keys.
INLINE void store_partial(const Args& a, const float (*out)[2][4], const float* stats, u64 row, u32 warp, u32 lane) {
  float* to = a.partial + row * HEAD + warp * 16 + (lane & 3) * 2;
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int n = 0; n < 2; n++) {
      float* at = to + (m * 16 + (lane >> 2)) * HEAD + n * 8;
      *(float2*)at = make_float2(out[m][n][0], out[m][n][1]);
      *(float2*)(at + 8 * HEAD) = make_float2(out[m][n][2], out[m][n][3]);
    }
  for (u32 m = warp * 32 + lane; m < M_ROWS; m += EPILOGUE_THREADS)
    a.partial_stats[row + m] = make_float2(stats[m], stats[M_ROWS + m]);
}

INLINE void attend(const Args& a, const Stage& s, u8* scratch, u32 thread) {
  const u32 warp = thread >> 5, lane = thread & 31, base = shared_address(scratch), splits = key_splits(a);
  const u32 items = (u32)a.step[STEP_REQUESTS] * KV_HEADS * splits;
  float* stats = (float*)(scratch + STATS_AT);
  for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
    const u32 range = item % splits, request = item / splits / KV_HEADS, kv_head = item / splits % KV_HEADS;
    const Keys keys = split_keys(a, request, s.window, splits);
    if (range >= keys.ranges) continue;
    const u32 begin = range * keys.per, end = min(keys.total, begin + keys.per);
#pragma unroll 1
    for (u32 group = 0; group < M_GROUPS; group++) {
      float out[M_TILES][2][4];
#pragma unroll 1
      for (u32 from = begin; from < end; from += KEYS) {
        if (group == 0 || end - begin > KEYS) {  // a range of one tile stays in shared memory
          start_keys(a, keys, s.layer, request, kv_head, from, end, base, thread);
          load_block_keys(a, keys, s.layer, request, kv_head, from, min(end, from + KEYS), base, warp, lane);
        }
        if (from == begin) load_queries(a, s.layer, request, kv_head, group, base, warp, lane);
        copy_async_wait();
        epilogue_sync();
        scores(base, scratch, keys, group * M_ROWS, from, end, s.window, warp, lane);
        epilogue_sync();
        soften(scratch, stats, from == begin, warp, lane);
        epilogue_sync();
        weigh_values(base, stats, out, from == begin, warp, lane);
        epilogue_sync();
      }
      store_partial(a, out, stats, (u64)item * M_ALL + group * M_ROWS, warp, lane);
      epilogue_sync();
    }
  }
  fence_bulk_shared();
}

// A warp a (row, head): o = sum_r exp(max_r - max) o_r / sum_r exp(max_r - max) l_r over the key ranges r, in their order.
INLINE void combine(const Args& a, const Stage& s, u32 thread) {
  const u32 warp = thread >> 5, lane = thread & 31, splits = key_splits(a);
  for (u32 unit = blockIdx.x + warp * gridDim.x; unit < (u32)a.step[STEP_REQUESTS] * BLOCK * HEADS; unit += EPILOGUE_WARPS * gridDim.x) {
    const u32 head = unit % HEADS, row = unit / HEADS, request = row / BLOCK;
    const u32 m = row % BLOCK * GROUP + head % GROUP;
    const u32 ranges = split_keys(a, request, s.window, splits).ranges;
    const u64 first = ((u64)request * KV_HEADS + head / GROUP) * splits;
    const float2* stats = a.partial_stats + first * M_ALL + m;
    float top = -INFINITY;
    for (u32 r = lane; r < ranges; r += 32) top = fmaxf(top, __ldcg((const float*)(stats + (u64)r * M_ALL)));
#pragma unroll
    for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
    float sum = 0.f;
    const float* from = a.partial + (first * M_ALL + m) * HEAD + lane * 4;
#pragma unroll 8
    for (u32 r = 0; r < ranges; r++) {
      const float2 st = __ldcg(stats + (u64)r * M_ALL);
      const float4 v = __ldcg((const float4*)(from + (u64)r * M_ALL * HEAD));
      const float w = __expf(st.x - top);
      sum += w * st.y;
      o.x += w * v.x, o.y += w * v.y, o.z += w * v.z, o.w += w * v.w;
    }
    const float inverse = __fdividef(1.f, sum);
    o.x = round_bf16(o.x * inverse) * FEEDS_MX, o.y = round_bf16(o.y * inverse) * FEEDS_MX;
    o.z = round_bf16(o.z * inverse) * FEEDS_MX, o.w = round_bf16(o.w * inverse) * FEEDS_MX;
    *(uint2*)(a.attended + fragment(row, head * HEAD + lane * 4, Q_PADDED * 16)) = pack4(o);
  }
}
