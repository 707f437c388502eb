// The words, then step.cu as it is: the unit that is compiled anew for every geometry.
#include "words.h"

#include "step.cu"

namespace emulator {
struct Launch;
const char* run(void (*kernel)(const void*), const Launch* launches, int count, u64 seed, u64 jump);
}  // namespace emulator

template <class A>
static void call(void (*kernel)(A), const void* arguments) {
  kernel(*static_cast<const A*>(arguments));
}
extern "C" const char* emulator_run(const emulator::Launch* launches, int count, u64 seed, u64 jump) {
  return emulator::run([](const void* arguments) { call(draft_step, arguments); }, launches, count, seed, jump);
}
