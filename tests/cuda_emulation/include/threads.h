// Runs the threads of a CUDA block on one thread of the CPU, one block after the other.
//
// Each thread of a block is a fiber: it has a stack of its own, and runs until it waits for other
// threads. Then the next fiber goes on. The order of the fibers is fixed, so every run is the same.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "vector_types.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define CUDA_EMULATION_ADDRESS_SANITIZER
#endif

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_emulation {

constexpr int kMostBytesSent = 16;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;

enum class WaitsFor { kNothing, kBarrier, kWarp, kEnd };

// The data that a thread exchanges with the other threads of its warp.
struct Exchange {
  unsigned mask = 0;  // The lanes that must take part. 0 stands for the lanes at this line.
  bool vote = false;
  int source = 0;  // The lane whose bytes this thread wants.
  unsigned char sent[kMostBytesSent] = {};
  unsigned char received[kMostBytesSent] = {};
  unsigned lanes = 0;  // The lanes that took part.
  unsigned votes = 0;  // The lanes that voted with true.
};

// A stack, and the place in the code where the owner of the stack continues.
struct Fiber {
  ucontext_t context;
  void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // The stack that AddressSanitizer uses.
};

struct Thread : Fiber {
  uint3 index;
  WaitsFor waits_for = WaitsFor::kNothing;
  int line = 0;  // The line of the source where the thread waits.
  Exchange exchange;
};

// The state of the emulated machine. It is global, because `threadIdx` and similar variables are
// global in CUDA.
inline Fiber scheduler;
inline std::vector<Thread*> threads;  // The threads of the current block come first.
inline int num_threads = 0;
inline bool is_reverse = false;  // The order in which threads and blocks run.
inline int turn = 0;             // How many threads have had their turn since the scheduler ran.
inline Thread* current = nullptr;
inline const char* kernel_name = "";
inline void (*body)(const void*) = nullptr;  // Calls the kernel with its arguments.
inline const void* arguments = nullptr;

// The byte that fills memory before a run. The runs in the two orders of threads have different
// bytes. So if a result depends on memory that no thread wrote, the two results differ.
inline int Garbage() { return is_reverse ? 0x00 : 0xFF; }

[[noreturn]] inline void Fail(const std::string& message) {
  std::fprintf(stderr, "kernel `%s`, block (%u, %u, %u): %s\n", kernel_name, blockIdx.x, blockIdx.y,
               blockIdx.z, message.c_str());
  std::_Exit(1);
}

inline int ThreadNumber() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
inline int Lane() { return ThreadNumber() % warpSize; }

inline void Switch(Fiber* from, Fiber* to) {
#ifdef CUDA_EMULATION_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
  swapcontext(&from->context, &to->context);
#ifdef CUDA_EMULATION_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

// Goes on with the next thread that does not wait, or else with the scheduler.
inline void SwitchToNext(Fiber* from) {
  Fiber* to = &scheduler;
  current = nullptr;
  while (turn < num_threads && current == nullptr) {
    Thread* next = threads[is_reverse ? num_threads - 1 - turn : turn];
    ++turn;
    if (next->waits_for == WaitsFor::kNothing) current = next;
  }
  if (current != nullptr) {
    to = current;
    threadIdx = current->index;
  }
  if (to != from) Switch(from, to);
}

inline void Wait(WaitsFor what, int line) {
  Thread* self = current;
  self->waits_for = what;
  self->line = line;
  SwitchToNext(self);
}

inline void RunFiber() {
#ifdef CUDA_EMULATION_ADDRESS_SANITIZER
  const void* stack;
  std::size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (scheduler.stack == nullptr) {  // The first fiber is started by the scheduler.
    scheduler.stack = const_cast<void*>(stack);
    scheduler.stack_bytes = bytes;
  }
#endif
  for (;;) {  // Once for each block.
    body(arguments);
    Wait(WaitsFor::kEnd, 0);
  }
}

inline Thread* NewThread() {
  auto* thread = new Thread;
  // A page that nobody may touch lies below each stack.
  constexpr std::size_t kFence = 4096;
  void* memory = mmap(nullptr, kFence + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kFence, PROT_NONE) != 0) {
    Fail("no memory for the stacks of its threads");
  }
  thread->stack = static_cast<char*>(memory) + kFence;
  thread->stack_bytes = kStackBytes;
  getcontext(&thread->context);
  thread->context.uc_stack.ss_sp = thread->stack;
  thread->context.uc_stack.ss_size = thread->stack_bytes;
  thread->context.uc_link = nullptr;
  makecontext(&thread->context, RunFiber, 0);
  return thread;
}

// Releases lanes of a warp that wait at the same line, once all lanes that they wait for have
// arrived. With `with_any`, also releases lanes that wait for any lanes. Returns whether any lane
// was released.
inline bool ReleaseLanes(int first, int count, bool with_any) {
  auto waits = [&](int lane) { return threads[first + lane]->waits_for == WaitsFor::kWarp; };
  bool released = false;
  for (int lane = 0; lane < count; ++lane) {
    if (!waits(lane)) continue;
    const Thread& one = *threads[first + lane];
    const unsigned mask = one.exchange.mask;
    if ((mask == 0) != with_any) continue;
    unsigned here = 0, votes = 0, running = 0;
    for (int i = 0; i < count; ++i) {
      const Thread& other = *threads[first + i];
      if (other.waits_for != WaitsFor::kEnd) running |= 1u << i;
      if (!waits(i) || other.line != one.line || other.exchange.mask != mask) continue;
      here |= 1u << i;
      if (other.exchange.vote) votes |= 1u << i;
    }
    if ((mask & running & ~here) != 0) continue;
    released = true;
    for (int i = 0; i < count; ++i) {
      if ((here >> i & 1) == 0) continue;
      Exchange& exchange = threads[first + i]->exchange;
      exchange.lanes = here;
      exchange.votes = votes;
      const int source = exchange.source;
      if (source < 32 && (here >> source & 1) != 0) {
        std::memcpy(exchange.received, threads[first + source]->exchange.sent, kMostBytesSent);
      } else {  // CUDA does not define what is received from a lane that takes no part.
        std::memset(exchange.received, Garbage(), kMostBytesSent);
      }
      threads[first + i]->waits_for = WaitsFor::kNothing;
    }
  }
  return released;
}

inline bool ReleaseWarps(bool with_any) {
  bool released = false;
  for (int first = 0; first < num_threads; first += warpSize) {
    const int count = num_threads - first < warpSize ? num_threads - first : warpSize;
    released |= ReleaseLanes(first, count, with_any);
  }
  return released;
}

// Lets all threads pass a barrier. It is an error if the threads have not all reached the same
// barrier.
inline void PassBarrier() {
  int line = 0, waiting = 0, at_line = 0, ended = 0;
  for (int i = 0; i < num_threads; ++i) {
    const Thread& thread = *threads[i];
    ended += thread.waits_for == WaitsFor::kEnd;
    if (thread.waits_for != WaitsFor::kBarrier) continue;
    ++waiting;
    if (line == 0) line = thread.line;
    at_line += thread.line == line;
  }
  const std::string of = " of " + std::to_string(num_threads) + " threads ";
  if (waiting == 0) {
    Fail("a shuffle or vote of a warp waits for lanes that do not take part (" +
         std::to_string(ended) + of + "have ended)");
  }
  if (at_line != num_threads) {
    Fail("not all threads reach a barrier: " + std::to_string(at_line) + of + "wait at line " +
         std::to_string(line) + ", " + std::to_string(ended) + " have ended");
  }
  for (int i = 0; i < num_threads; ++i) threads[i]->waits_for = WaitsFor::kNothing;
}

// Runs the threads of the block `blockIdx` to their end.
inline void RunBlock() {
  for (int i = 0; i < num_threads; ++i) threads[i]->waits_for = WaitsFor::kNothing;
  for (;;) {
    turn = 0;
    SwitchToNext(&scheduler);
    bool all_ended = true;
    for (int i = 0; i < num_threads; ++i) all_ended &= threads[i]->waits_for == WaitsFor::kEnd;
    if (all_ended) return;
    if (!ReleaseWarps(false) && !ReleaseWarps(true)) PassBarrier();
  }
}

}  // namespace cuda_emulation
