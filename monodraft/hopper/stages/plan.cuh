// What the host hands to a launch. geometry.py and launch.py hold the same layouts; tests compare the sizes.
#pragma once
#include "../device/matrix.cuh"
#include "../device/waits.cuh"

// Geometry of the build, all given with -D: see Geometry.options in geometry.py.
#define EPILOGUE_WARPS 8
#define COMPUTE_WARPS 8
#define EPILOGUE_THREADS (EPILOGUE_WARPS * 32)
// One thread arrives on an mbarrier for all that met in front of it (a named barrier, or a warp): the order of the two holds for
// the others' accesses too. A checker that does not follow that gets a build in which all of them arrive.
#ifdef EVERY_ARRIVES
#define ARRIVALS(threads) (threads)
#else
#define ARRIVALS(threads) 1
#endif
#define PAIR_THREADS ((COMPUTE_WARPS + EPILOGUE_WARPS) * 32)  // who meets at the `red` barriers
#define THREADS (PAIR_THREADS + 128)                          // and the producer warp, alone in its warpgroup
// Registers: 640 threads start with 96 each; attention needs more, the producer hardly any.
#define PRODUCER_REGISTERS 48
#define COMPUTE_REGISTERS 96
#define EPILOGUE_REGISTERS (216 - COMPUTE_REGISTERS)
#define ROWS (8 * ROW_TILES)
#define ROWS_LOG2 (2 + ROW_TILES)  // ROW_TILES is 1 or 2
#ifndef HEAD
#define HEAD 128
#endif
#define PIECES (HEAD / 128)  // of a head: a warp's lanes hold four dims of each
#ifndef ROTARY_APART
#define ROTARY_APART ROTARY_PAIRS  // dims from the first of a rotated pair to the second
#endif
#define PAGE 64             // positions of a K/V page
#define SLOT_BYTES 4224     // ring slot: one MXFP8 chunk (16 rows x 256, 128 scale bytes) or one bf16 chunk (16 x 128)
#define PLANE (PART_SIZE * 16)   // bytes of one part of the activations of 8 rows, in fragment order
#ifdef SHARED_KV
#define KV_PARTS 1  // v is k's projection
#else
#define KV_PARTS 2
#endif
#define QKV_SIZE ((HEADS + KV_PARTS * KV_HEADS) * HEAD)
#define GROUP (HEADS / KV_HEADS)
// Row blocks of w2 that a CTA scans at most, and the scratch of that: upper bounds, then a candidate block per warp.
#define MARKOV_BLOCKS ((VOCAB_PADDED / 16 + GRID - 1) / GRID + COMPUTE_WARPS)
#define MARKOV_REQUESTS (ROWS / BLOCK)
#define CANDIDATE_BYTES (RANK_PADDED / 128 * 4096)
#define CANDIDATE_WARPS 4
// In one launch, the first MARKOV_RESIDENT chunks of a warp stay in shared memory from the chain's first step on.
#define BIAS_PLANE ((RANK + 255) / 256 * 4096)  // bytes of the vectors of 8 requests, padded for MXFP8 chunks
#define UPPER_AT (2 * ROW_TILES * BIAS_PLANE)  // behind the vectors in bf16 and in float16
#define RESIDENT_AT (UPPER_AT + (MARKOV_BLOCKS * 16 * MARKOV_REQUESTS * 4 + 127) / 128 * 128)
#ifndef SAMPLED
#define SAMPLED 0  // 1: drafts may be sampled (sampling.cuh)
#endif
#define FEEDS_MX (MXFP8 ? ACTIVATION_SCALE : 1.0f)  // factor on activations that a layer linear reads

enum Kind : u32 { KIND_LINEAR, KIND_PREPARE, KIND_ATTEND, KIND_COMBINE, KIND_MARKOV, KIND_FINISH, KIND_MARKOV_BOUNDED, KIND_SUM, KIND_JOIN };
enum Out : u32 { OUT_ROWS, OUT_CONTEXT, OUT_RESIDUAL, OUT_GATED, OUT_LOGITS, OUT_HEADS, OUT_PARTIAL, OUT_DELTA };

// One stage. A linear computes [16 * row_blocks] x K for all rows; its weights lie in chunks [row block][chunk].
struct Stage {
  const u8* weights;      // of a join: float [HIDDEN_PADDED] of the norm, and the layer's scalar
  const u8* input;        // activations in fragment order, or row-major features
  void* output;
  const float* squares;   // partial sums of squares of the input, or null: no norm on the input
  const float* next_norm; // factor of the norm that follows (OUT_RESIDUAL, OUT_CONTEXT)
  u32 kind, out, mxfp8, row_major;
  u32 row_blocks, chunks, part_chunks, parts;
  u32 split_log2, rotation, layer, window;
  u32 step, inner, columns, next_mxfp8;
};

#define STEP_REQUESTS 0
#define STEP_CONTEXT 1
#define STEP_SPLITS 2            // ranges that the keys of a KV head are cut into at most
#define STEP_ANCHOR 16
#define STEP_POSITION 32
#define STEP_CONTEXT_REQUEST 48
#define STEP_CONTEXT_POSITION 64
#define STEP_KEYS 80             // per layer and request: first context position, keys per range, ranges in use, 0
#define STEP_WORDS (STEP_KEYS + LAYERS * ROWS * 4)

struct Args {
  const Stage* stages;
  const int* step;            // inputs of this step, STEP_* words
  const int* pages;           // [requests][MAX_PAGES]
  const u16* embed;           // [VOCAB][HIDDEN]
  const u16* w1;              // [VOCAB][RANK]
  const u8* w2;               // bf16 chunks, for candidates of the bounded stage
  const float* w1_lengths;    // [VOCAB] ||w1 row||, rounded up
  const float* slack;         // [VOCAB_PADDED] error of a row of w2 in MXFP8, per unit of ||w1[previous]||
  const float2* rope;         // [positions][ROTARY_PAIRS] cos, sin
  const float* head_norms;    // [LAYERS][q, k][HEAD]
  const float* first_norm;    // [HIDDEN_PADDED]
  const float* confidence;    // [HIDDEN_PADDED + RANK_PADDED + 1], bias last
  u16* residual;              // fragment order
  u8* hidden;                 // input of the next norm-ed linear, fragment order
  u8* attended;               // input of o
  u16* qkv;                   // [ROWS][QKV_SIZE]
  const u16* context_kv;      // [ROWS][LAYERS][KV_PARTS][KV_HEADS][HEAD]
  float* squares;             // [ROWS][HIDDEN_PADDED / 16]
  float* partial;             // [items][M_ROWS][HEAD]
  float2* partial_stats;      // [items][M_ROWS] maximum, sum
  float* logits;              // [ROWS][VOCAB_PADDED] base logits, bf16 values
  float* corrected;           // the same shape or null
  u64* best;                  // [2][ROWS][gridDim]
  float* confidence_hidden;   // [ROWS]
  float* confidence_out;      // [ROWS]
  int* tokens;                // [ROWS]
  u16* pool;                  // [pages][LAYERS][2][KV_HEADS][PAGE][HEAD]
  u32* counter;
  u32* progress;              // [gridDim]
  u32* health;
  u32* epoch;
  u64* stamps;                // [gridDim][MAX_STAGES][2] clock at a stage's start and end in the first epilogue thread, or null
  u32* floors;                // [BLOCK][ROWS] greatest lower bound that any CTA has found so far, ordered; prepare clears
  u32* rescored;              // [BLOCK] row blocks read again by the bounded stage, all steps so far
  u64 bound;
  int first, count, fault_cta, fault_stage;
#if RANKS > 1
  u8* peers[RANKS];           // exchange memory of every rank (stages/ranks.cuh)
  u64 rank;
#endif
};

// Ids of a rank's part of the vocabulary (VOCAB ids) are counted from here.
#if RANKS > 1
#define FIRST_ID(a) ((u32)(a).rank * VOCAB)
#else
#define FIRST_ID(a) 0u
#endif

// Byte offset of (row, k) in fragment order: [row / 8][k / 32][row % 8][(k % 32) / 8][k % 8] of 16-bit elements; the
// unit of 16 bytes is what one lane of the matrix instruction reads.
INLINE u32 fragment(u32 row, u32 k, u32 plane) {
  return (row >> 3) * plane + (k >> 5) * 512 + ((row & 7) * 4 + ((k & 31) >> 3)) * 16 + (k & 7) * 2;
}
INLINE u32 first_row_block(const Stage& s) {
  u32 start = cta() + s.rotation;
  return start >= ctas() ? start - ctas() : start;
}
INLINE u32 chunks_of_part(const Stage& s, u32 part) { return min(s.part_chunks, s.chunks - part * s.part_chunks); }
