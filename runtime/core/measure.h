#ifndef RUNTIME_CORE_MEASURE_H_
#define RUNTIME_CORE_MEASURE_H_

#include <cstdint>
#include <vector>

#include "runtime/core/timed.h"

namespace tvm_interop {

// Times each executor `repeats` times and returns the times in seconds: first all values of the
// first executor, then all values of the second, and so on.
//
// The executors are interleaved. Every round runs each executor once, in an order drawn anew from
// `seed`. So a change of the processor's clock, or of the load by other processes, affects all
// executors alike. The first `warmup` rounds are not recorded.
//
// If `primed` is true, each executor runs once, untimed, before each timed run. Then its streams
// are awake, and the caches hold as much of its data as fits. An executor whose timed run took more
// than 2 milliseconds is not primed any more, because a run of that length gains little from it. If
// `primed` is false, the time depends on which executor ran before. For example, a stage that
// follows large stages does not find its tensors in the cache.
std::vector<double> MeasureInterleaved(const std::vector<Timed*>& executors, int warmup,
                                       int repeats, uint64_t seed, bool primed);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_MEASURE_H_
