// Where lanes stand, in words. Return addresses are written as "@address"; the host turns them into places of the source.
#pragma once
#include <deque>
#include <string>

#include "machine.h"

namespace emulator {

inline std::string place(const Lane& lane) {
  void* at[12];
  const int count = frames(lane.context, lane.stack, lane.stack + STACK, at, 12);
  std::string text;
  char word[32];
  for (int i = 0; i < count; i++) {
    snprintf(word, sizeof word, " @%p", at[i]);
    text += word;
  }
  return text;
}

inline std::string described(const Lane& lane) {
  char text[96];
  snprintf(text, sizeof text, "; CTA %u, warp %u, lane %u", lane.warp->cta->index, lane.warp->index, lane.thread % LANES);
  return text;
}

// A line for every group of lanes of a warp that stand at the same word, `MOST` lines at most.
inline std::string all_described(const std::deque<Cta>& ctas) {
  constexpr u32 MOST = 60;
  std::string text;
  u32 lines = 0;
  char line[256];
  for (const Cta& cta : ctas)
    for (const Warp& warp : cta.warps) {
      u32 told = 0;
      for (u32 l = 0; l < LANES; l++) {
        const Lane& lane = warp.lanes[l];
        if (told >> l & 1u || lane.state == DONE || !cta.left) continue;
        u32 same = 0;
        for (u32 m = l; m < LANES; m++) {
          const Lane& other = warp.lanes[m];
          if (other.state == lane.state && other.at == lane.at && other.wanted == lane.wanted) same |= 1u << m;
        }
        told |= same;
        if (++lines > MOST) continue;
        const char* how[] = {"able to run after", "polling in", "waiting in", ""};
        snprintf(line, sizeof line, "\n  CTA %u warp %u lanes %#010x %s %s %#llx", cta.index, warp.index, same, how[lane.state],
                 lane.at, lane.wanted);
        text += line + place(lane);
      }
    }
  snprintf(line, sizeof line, "\n  and %u more", lines - MOST);
  return lines > MOST ? text + line : text;
}
}  // namespace emulator
