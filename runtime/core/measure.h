#ifndef RUNTIME_CORE_MEASURE_H_
#define RUNTIME_CORE_MEASURE_H_

#include <cstdint>
#include <vector>

#include "runtime/core/timed.h"

namespace tvm_interop {

// Times each executor `repeats` times and returns the seconds, `repeats` values for each executor
// in turn.
//
// The contestants are interleaved: every round runs each once, in an order drawn anew from `seed`,
// so that whatever drifts (clock, caches, a neighbour's load) falls on all alike. Each is run
// `warmup` times first, untimed.
//
// `primed` runs each once, untimed, before each timed run: its streams are awake then, and caches
// hold what it can keep there. Without, the time depends on what ran before: a stage among large
// ones finds its tensors gone, and one among its likes does not.
std::vector<double> MeasureInterleaved(const std::vector<Timed*>& executors, int warmup,
                                       int repeats, uint64_t seed, bool primed);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_MEASURE_H_
