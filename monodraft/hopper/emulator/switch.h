// Fibers: a stack each, and the switch from one to another.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

// Where a suspended fiber stands. The machine's way keeps what a call must preserve on the fiber's own stack.
#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
struct Context {
  void** top = nullptr;
};
extern "C" void emulator_switch(void*** save, void** to);
asm(R"(
.text
.p2align 4
.type emulator_switch,@function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch,.-emulator_switch
)");

inline void switch_context(Context& from, Context& to) { emulator_switch(&from.top, to.top); }

// Makes a context that starts `entry` at the upper end of a stack, with no caller.
inline void make_context(Context& context, char* low, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(low) + bytes) & ~uintptr_t(15));
  *--top = nullptr;                        // the return address of `entry`, which never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;  // rbp = 0 ends the chain of frames
  context.top = top;
}

// Return addresses of a suspended fiber, innermost first.
inline int frames(const Context& context, const char* low, const char* high, void** out, int most) {
  int count = 0;
  if (!context.top) return 0;
  out[count++] = context.top[6];
  for (void** frame = reinterpret_cast<void**>(context.top[5]); count < most; frame = reinterpret_cast<void**>(frame[0])) {
    const char* at = reinterpret_cast<const char*>(frame);
    if (at < low || at + 16 > high || !frame[1]) break;
    out[count++] = frame[1];
  }
  return count;
}
#else
}  // namespace emulator
#include <ucontext.h>
namespace emulator {
struct Context {
  ucontext_t saved;
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }
inline void make_context(Context& context, char* low, size_t bytes, void (*entry)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = low;
  context.saved.uc_stack.ss_size = bytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}
inline int frames(const Context&, const char*, const char*, void**, int) { return 0; }
#endif
}  // namespace emulator
