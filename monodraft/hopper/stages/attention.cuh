// Attention of the block over the pool and itself: KV heads x groups of query rows x key ranges spread over the grid, then a
// combine of the ranges. An item takes all rows of the block and the query heads of a KV head together, at most M_ROWS of
// them so that their sums stay in registers: K and V come from memory once, a second group finds them in L2.
//
// Query row m of a KV head is (row j, head h of its group) = (m / GROUP, m % GROUP). Keys are numbered 0..T-1: the context from the window's lower edge, then the block. Scratch lies
// where activations lie.
#pragma once
#include "heads.cuh"

#define M_ROWS (M_TILES * 16)
#define KEY_STRIDE (HEAD * 2 + 16)          // bytes of a row of bf16, padded against bank conflicts
#define UNITS (HEAD / 8)                    // of 16 bytes in a head
#define OUT_TILES (HEAD / 64)               // of 8 columns of the sums, a warp
#define SCORE_STRIDE ((KEYS + 4) * 4)       // bytes of a row of scores; P overwrites them as bf16
#define QUERY_AT 0
#define KEY_AT (M_ROWS * KEY_STRIDE)
#define VALUE_AT (KEY_AT + KEYS * KEY_STRIDE)
#define SCORE_AT (VALUE_AT + KEYS * KEY_STRIDE)
#define STATS_AT (SCORE_AT + M_ROWS * SCORE_STRIDE)  // maximum, sum, factor: float [M_ROWS] each
#define TURNS_AT (STATS_AT + 12 * M_ROWS)               // cos, sin of the block's positions: float2 [BLOCK][ROTARY_PAIRS]
#define M_GROUPS ((BLOCK * GROUP + M_ROWS - 1) / M_ROWS)

struct Keys {
  u32 low, context, total, per, ranges;  // first position, keys from the pool, all keys, keys per range, ranges in use
};
// As the host has split them (workspace.py, `split_keys`).
INLINE Keys keys_of(u32 request, u32 layer) {
  const int4 split = *(const int4*)&fixed().step[STEP_KEYS + (layer * ROWS + request) * 4];
  Keys k;
  k.low = split.x, k.per = split.y, k.ranges = split.z;
  k.context = fixed().step[STEP_POSITION + request] - k.low;
  k.total = k.context + BLOCK;
  return k;
}
#define MAX_SPLITS (GRID / (KV_HEADS * M_GROUPS) > 1 ? GRID / (KV_HEADS * M_GROUPS) : 1)

// What an item needs besides keys: its raw query heads, and the rotations of the block's positions.
INLINE void start_queries(const Args& a, u32 request, u32 kv_head, u32 m_first, u32 base, u32 thread) {
  for (u32 i = thread; i < M_ROWS * UNITS; i += EPILOGUE_THREADS) {
    const u32 m = m_first + i / UNITS, row = m / GROUP, at = base + QUERY_AT + i / UNITS * KEY_STRIDE + i % UNITS * 16;
    if (row < BLOCK) copy_async16(at, a.qkv + (request * BLOCK + row) * QKV_SIZE + (kv_head * GROUP + m % GROUP) * HEAD + i % UNITS * 8);
    else store_shared16(at, make_uint4(0, 0, 0, 0));
  }
  const u16* turns = (const u16*)(a.rope + (u64)fixed().step[STEP_POSITION + request] * ROTARY_PAIRS);
  for (u32 i = thread; i < BLOCK * ROTARY_PAIRS / 2; i += EPILOGUE_THREADS) copy_async16(base + TURNS_AT + i * 16, turns + i * 8);
}

// Keys from..to (at most KEYS of them) of the request to shared memory, those of the block still raw; what lies past `to`
// becomes zero. A thread takes one unit of 16 bytes of every STRIDEth key; the pages are looked up all at once.
INLINE void start_keys(const Args& a, const Keys& keys, u32 layer, u32 request, u32 kv_head, u32 from, u32 to, u32 base, u32 thread) {
  constexpr u32 STRIDE = EPILOGUE_THREADS / UNITS, EACH = KEYS / STRIDE;
  const u32 unit = thread % UNITS, first = thread / UNITS;
  u32 pages[EACH];
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    const u32 key = from + first + STRIDE * i;
    pages[i] = key < min(to, keys.context) ? (u32)__ldg(a.pages + request * MAX_PAGES + (keys.low + key) / PAGE) : 0u;
  }
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    const u32 n = first + STRIDE * i, key = from + n, at = base + n * KEY_STRIDE + unit * 16;
    if (key >= to) {
      store_shared16(at + KEY_AT, make_uint4(0, 0, 0, 0));
      store_shared16(at + VALUE_AT, make_uint4(0, 0, 0, 0));
    } else {
      const u16* row = a.pool + pool_rows(pages[i], layer, 0, kv_head) + ((keys.low + key) % PAGE) * HEAD + unit * 8;
      u32 values = KV_HEADS * PAGE * HEAD;
      if (key >= keys.context) {
        row = a.qkv + (request * BLOCK + key - keys.context) * QKV_SIZE + (HEADS + kv_head) * HEAD + unit * 8;
        values = (KV_PARTS - 1) * KV_HEADS * HEAD;
      }
      copy_async16(at + KEY_AT, row);
      copy_async16(at + VALUE_AT, row + values);
    }
  }
}

// Norms and turns in place, a warp a head: the query heads (if `queries`), then the block's keys among from..to, and (with
// VALUE_NORM) its values.
INLINE void finish_heads(u8* scratch, const Keys& keys, HeadFactor q_factor, HeadFactor k_factor, u32 m_first, u32 from, u32 to, bool queries,
                         u32 warp, u32 lane) {
  const u32 block_from = max(from, keys.context), block = to > block_from ? to - block_from : 0;
#pragma unroll 2
  for (u32 i = (queries ? 0 : M_ROWS) + warp; i < M_ROWS + block; i += EPILOGUE_WARPS) {
    const bool query = i < M_ROWS;
    const u32 key = block_from + i - M_ROWS, row = query ? min((m_first + i) / GROUP, (u32)BLOCK - 1) : key - keys.context;
    uint2* head = (uint2*)(scratch + (query ? QUERY_AT + i * KEY_STRIDE : KEY_AT + (key - from) * KEY_STRIDE)) + lane;
    const float2* turns = (const float2*)(scratch + TURNS_AT) + row * ROTARY_PAIRS;
    store_head(head, packed(normed_and_turned(load_head(head), factor_of(query ? q_factor : k_factor, lane), turns, lane)));
#ifdef VALUE_NORM
    if (!query) store_head(head + (VALUE_AT - KEY_AT) / 8, packed(normed(load_head(head + (VALUE_AT - KEY_AT) / 8))));
#endif
  }
}

// Scores of 8 keys a warp at a time, float32, in shared memory; hidden ones are -inf. Without branches: with them the row
// tiles ran one after another.
INLINE void scores(u32 base, u8* scratch, const Keys& keys, u32 m_first, u32 from, u32 to, u32 window, u32 warp, u32 lane) {
  const u32 reach = window ? window : 1u << 30;  // |query position - key position| < reach
#pragma unroll 1
  for (u32 block = warp; block < KEYS / 8; block += EPILOGUE_WARPS) {
    float c[M_TILES][4];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) c[m][0] = c[m][1] = c[m][2] = c[m][3] = 0.f;
#pragma unroll 1
    for (u32 piece = 0; piece < PIECES; piece++) {
      uint4 b[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        b[k] = load_matrix4(base + KEY_AT + (block * 8 + (lane & 7)) * KEY_STRIDE + piece * 256 + k * 64 + (lane >> 3) * 16);
#pragma unroll
      for (int k = 0; k < 8; k++)
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
          const uint4 q =
              load_matrix4(base + QUERY_AT + (m * 16 + (lane & 15)) * KEY_STRIDE + piece * 256 + k * 32 + (lane >> 4) * 16);
          const uint4 w = b[k >> 1];
          multiply_add(c[m], q.x, q.y, q.z, q.w, k & 1 ? w.z : w.x, k & 1 ? w.w : w.y);
        }
    }
    const u32 column = block * 8 + (lane & 3) * 2, key = from + column;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 row = m * 16 + half * 8 + (lane >> 2);
        const u32 shifted = keys.context + (m_first + row) / GROUP - key + reach - 1;  // distance + reach - 1, wrapping
        const bool first = (key < to) & (shifted < 2 * reach - 1), second = (key + 1 < to) & (shifted - 1 < 2 * reach - 1);
        const float low = first ? c[m][half * 2] * SCORE_SCALE : -INFINITY;
        const float high = second ? c[m][half * 2 + 1] * SCORE_SCALE : -INFINITY;
        *(float2*)(scratch + SCORE_AT + row * SCORE_STRIDE + column * 4) = make_float2(low, high);
      }
  }
}

// Online softmax, a warp a row, four rows at a time: P = bf16(exp(score - maximum)) over the scores, and by how much earlier
// sums shrink.
INLINE void soften(u8* scratch, float* stats, bool first, u32 warp, u32 lane) {
  constexpr u32 EACH = KEYS / 32, TOGETHER = M_ROWS / EPILOGUE_WARPS < 4 ? M_ROWS / EPILOGUE_WARPS : 4;
#pragma unroll 1
  for (u32 row0 = warp * TOGETHER; row0 < M_ROWS; row0 += EPILOGUE_WARPS * TOGETHER) {
    float s[TOGETHER][EACH], top[TOGETHER], sum[TOGETHER];
#pragma unroll
    for (u32 j = 0; j < TOGETHER; j++) {
      const float* from = (const float*)(scratch + SCORE_AT + (row0 + j) * SCORE_STRIDE) + lane;
      top[j] = -INFINITY, sum[j] = 0.f;
#pragma unroll
      for (u32 i = 0; i < EACH; i++) s[j][i] = from[32 * i], top[j] = fmaxf(top[j], s[j][i]);
    }
#pragma unroll
    for (int m = 16; m; m >>= 1)
#pragma unroll
      for (u32 j = 0; j < TOGETHER; j++) top[j] = fmaxf(top[j], __shfl_xor_sync(~0u, top[j], m));
    __syncwarp();  // the rows are in registers before P overwrites them
#pragma unroll
    for (u32 j = 0; j < TOGETHER; j++) {
      const float old = first ? -INFINITY : stats[row0 + j];
      top[j] = fmaxf(old, top[j]);
      const float shift = top[j] == -INFINITY ? 0.f : top[j];
      u16* to = (u16*)(scratch + SCORE_AT + (row0 + j) * SCORE_STRIDE) + lane;
#pragma unroll
      for (u32 i = 0; i < EACH; i++) {
        const float p = __expf(s[j][i] - shift);
        sum[j] += p;
        to[32 * i] = (u16)pack_bf16(p, 0.f);
      }
    }
#pragma unroll
    for (int m = 16; m; m >>= 1)
#pragma unroll
      for (u32 j = 0; j < TOGETHER; j++) sum[j] += __shfl_xor_sync(~0u, sum[j], m);
    if (lane == 0)
#pragma unroll
      for (u32 j = 0; j < TOGETHER; j++) {
        const float shift = top[j] == -INFINITY ? 0.f : top[j];
        const float factor = first ? 0.f : __expf(stats[row0 + j] - shift);
        const float before = first ? 0.f : stats[M_ROWS + row0 + j] * factor;
        stats[row0 + j] = top[j], stats[M_ROWS + row0 + j] = before + sum[j], stats[2 * M_ROWS + row0 + j] = factor;
      }
    __syncwarp();
  }
}

// A warp has HEAD / 8 columns of the sums, OUT_TILES of 8.
INLINE void weigh_values(u32 base, const float* stats, float (*out)[OUT_TILES][4], bool first, u32 warp, u32 lane) {
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
    const float low = first ? 0.f : stats[2 * M_ROWS + m * 16 + (lane >> 2)];
    const float high = first ? 0.f : stats[2 * M_ROWS + m * 16 + 8 + (lane >> 2)];
#pragma unroll
    for (int n = 0; n < OUT_TILES; n++) {
      if (first) out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.f;
      else out[m][n][0] *= low, out[m][n][1] *= low, out[m][n][2] *= high, out[m][n][3] *= high;
    }
  }
#pragma unroll 2
  for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
    for (int n = 0; n < OUT_TILES; n += 2) {
      const uint4 v = load_matrix4_transposed(base + VALUE_AT + (k * 16 + (lane & 15)) * KEY_STRIDE + warp * (HEAD / 4) + n * 16 +
                                              (lane >> 4) * 16);
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
        const uint4 p = load_matrix4(base + SCORE_AT + (m * 16 + (lane & 15)) * SCORE_STRIDE + k * 32 + (lane >> 4) * 16);
        multiply_add(out[m][n], p.x, p.y, p.z, p.w, v.x, v.y);
        multiply_add(out[m][n + 1], p.x, p.y, p.z, p.w, v.z, v.w);
      }
    }
  }
}

// Stores the sums of M_ROWS query rows over one range of keys.
INLINE void store_partial(const Args& a, const float (*out)[OUT_TILES][4], const float* stats, u64 row, u32 warp, u32 lane) {
  float* to = a.partial + row * HEAD + warp * (HEAD / 8) + (lane & 3) * 2;
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int n = 0; n < OUT_TILES; n++) {
      float* at = to + (m * 16 + (lane >> 2)) * HEAD + n * 8;
      *(float2*)at = make_float2(out[m][n][0], out[m][n][1]);
      *(float2*)(at + 8 * HEAD) = make_float2(out[m][n][2], out[m][n][3]);
    }
  for (u32 m = warp * 32 + lane; m < M_ROWS; m += EPILOGUE_THREADS)
    a.partial_stats[row + m] = make_float2(stats[m], stats[M_ROWS + m]);
}

// Asks L2 for the context keys of this CTA's items while the projection of the block's heads is still running.
INLINE void prefetch_keys(const Args& a, const Stage& s, u32 thread) {
  constexpr u32 LINES = HEAD / 64;  // cache lines of a key, and of a value
  const u32 splits = fixed().step[STEP_SPLITS], items = (u32)fixed().step[STEP_REQUESTS] * KV_HEADS * M_GROUPS * splits;
  for (u32 item = cta(); item < items; item += ctas()) {
    const u32 range = item % splits, head = item / (splits * M_GROUPS), request = head / KV_HEADS;
    const Keys keys = keys_of(request, s.layer);
    const u32 begin = range * keys.per, end = min(keys.context, begin + keys.per);
    for (u32 i = begin * 2 * LINES + thread; i < end * 2 * LINES; i += EPILOGUE_THREADS - 32) {
      const u32 position = keys.low + i / (2 * LINES), page = __ldg(a.pages + request * MAX_PAGES + position / PAGE);
      prefetch_l2(a.pool + pool_rows(page, s.layer, i / LINES % 2, head % KV_HEADS) + (position % PAGE) * HEAD + i % LINES * 64);
    }
  }
}

INLINE void attend(const Args& a, const Stage& s, u8* scratch, u32 thread) {
  const u32 warp = uniform(thread >> 5), lane = thread & 31, base = shared_address(scratch), splits = fixed().step[STEP_SPLITS];
  const u32 items = (u32)fixed().step[STEP_REQUESTS] * KV_HEADS * M_GROUPS * splits;
  const float* factors = a.head_norms + s.layer * 2 * HEAD;
  const HeadFactor q_factor = hold_factor(factors, lane), k_factor = hold_factor(factors + HEAD, lane);
  float* stats = (float*)(scratch + STATS_AT);
#pragma unroll 1
  for (u32 item = cta(); item < items; item += ctas()) {
    const u32 range = item % splits, m_first = item / splits % M_GROUPS * M_ROWS, head = item / (splits * M_GROUPS);
    const u32 request = head / KV_HEADS, kv_head = head % KV_HEADS;
    const Keys keys = keys_of(request, s.layer);
    if (range >= keys.ranges) continue;
    const u32 begin = range * keys.per, end = min(keys.total, begin + keys.per);
    start_queries(a, request, kv_head, m_first, base, thread);
    float out[M_TILES][OUT_TILES][4];
#pragma unroll 1
    for (u32 from = begin; from < end; from += KEYS) {
      start_keys(a, keys, s.layer, request, kv_head, from, end, base, thread);
      copy_async_wait();
      epilogue_sync();
      finish_heads(scratch, keys, q_factor, k_factor, m_first, from, min(end, from + KEYS), from == begin, warp, lane);
      epilogue_sync();
      scores(base, scratch, keys, m_first, from, end, s.window, warp, lane);
      epilogue_sync();
      soften(scratch, stats, from == begin, warp, lane);
      epilogue_sync();
      weigh_values(base, stats, out, from == begin, warp, lane);
      epilogue_sync();
    }
    store_partial(a, out, stats, (u64)item * M_ROWS, warp, lane);
    epilogue_sync();
  }
  fence_bulk_shared();
}

INLINE void add_weighted(float4& o, float w, float4 v) { o.x += w * v.x, o.y += w * v.y, o.z += w * v.z, o.w += w * v.w; }

// A warp a (row, head, piece of 128 dims): o = sum_r exp(max_r - max) o_r / sum_r exp(max_r - max) l_r over the key ranges r, in their order.
// Lane l weighs ranges l, l + 32, ...; the sums come to shared memory AT_ONCE ranges at a time meanwhile.
INLINE void combine(const Args& a, const Stage& s, u8* scratch, u32 thread) {
  constexpr u32 TURNS = (MAX_SPLITS + 31) / 32, ROOM = ACTIVATION_BYTES / EPILOGUE_WARPS / 512, AT_ONCE = ROOM < 16 ? ROOM : 16;
  const u32 warp = uniform(thread >> 5), lane = thread & 31, splits = fixed().step[STEP_SPLITS];
  const float4* sums = (const float4*)(scratch + warp * AT_ONCE * 512) + lane;
#pragma unroll 1
  for (u32 unit = cta() + warp * ctas(); unit < (u32)fixed().step[STEP_REQUESTS] * BLOCK * HEADS * PIECES; unit += EPILOGUE_WARPS * ctas()) {
    const u32 piece = unit % PIECES, head = unit / PIECES % HEADS, row = unit / PIECES / HEADS, request = row / BLOCK;
    const u32 m = row % BLOCK * GROUP + head % GROUP, ranges = keys_of(request, s.layer).ranges;
    const u32 first = ((request * KV_HEADS + head / GROUP) * M_GROUPS + m / M_ROWS) * splits * M_ROWS + m % M_ROWS;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
    float top = -INFINITY, sum = 0.f, weights[TURNS];
#pragma unroll 1
    for (u32 from = 0; from < ranges; from += AT_ONCE) {
      const u32 count = min(AT_ONCE, ranges - from);
      for (u32 r = 0; r < count; r++)
        copy_async16(shared_address(sums + r * 32), a.partial + ((u64)first + (from + r) * M_ROWS) * HEAD + piece * 128 + lane * 4);
      if (from == 0) {
        float2 stats[TURNS];
#pragma unroll
        for (u32 t = 0; t < TURNS; t++) {
          stats[t] = make_float2(-INFINITY, 0.f);
          if (t * 32 + lane < ranges) stats[t] = __ldcg(a.partial_stats + first + (t * 32 + lane) * M_ROWS);
        }
#pragma unroll
        for (u32 t = 0; t < TURNS; t++) top = fmaxf(top, stats[t].x);
#pragma unroll
        for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
#pragma unroll
        for (u32 t = 0; t < TURNS; t++) weights[t] = __expf(stats[t].x - top), sum += weights[t] * stats[t].y;
#pragma unroll
        for (int i = 16; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
      }
      copy_async_wait();
      __syncwarp();
      for (u32 r = 0; r < count; r++) {
        float w = weights[0];
#pragma unroll
        for (u32 t = 1; t < TURNS; t++) w = (from + r) / 32 == t ? weights[t] : w;
        add_weighted(o, __shfl_sync(~0u, w, (from + r) & 31), sums[r * 32]);
      }
      __syncwarp();
    }
    const float inverse = __fdividef(1.f, sum);
    o.x = round_bf16(o.x * inverse) * FEEDS_MX, o.y = round_bf16(o.y * inverse) * FEEDS_MX;
    o.z = round_bf16(o.z * inverse) * FEEDS_MX, o.w = round_bf16(o.w * inverse) * FEEDS_MX;
    *(uint2*)(a.attended + fragment(row, head * HEAD + piece * 128 + lane * 4, Q_PADDED * 16)) = pack4(o);
  }
  fence_bulk_shared();
}
