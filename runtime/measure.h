#ifndef RUNTIME_MEASURE_H_
#define RUNTIME_MEASURE_H_

#include <cstdint>
#include <vector>

#include "runtime/timed.h"

namespace tvm_interop {

// Times each executor `repeats` times and returns the seconds, `repeats` values for each executor
// in turn.
//
// The contestants are interleaved: every round runs each once, in an order drawn anew from `seed`,
// so that whatever drifts (clock, caches, a neighbour's load) falls on all alike. Each is run
// `warmup` times first, untimed. `awake` wakes each before it is timed: a stage of a network finds
// its streams awake, and one that was measured with streams asleep says how long they take to wake.
std::vector<double> MeasureInterleaved(const std::vector<Timed*>& executors, int warmup,
                                       int repeats, uint64_t seed, bool awake);

}  // namespace tvm_interop

#endif  // RUNTIME_MEASURE_H_
