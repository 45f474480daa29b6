#include "runtime/core/measure.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace tvm_interop {

namespace {

// To prime an executor is to run it once, untimed, before each timed run. An executor whose run
// took longer than this is not primed, because cold caches make such a run hardly longer. A core's
// cache holds a megabyte, and filling it takes some 50 microseconds.
constexpr double kLongSeconds = 2e-3;

}  // namespace

std::vector<double> MeasureInterleaved(const std::vector<Timed*>& executors, int warmup,
                                       int repeats, uint64_t seed, bool primed) {
  std::vector<double> seconds(executors.size() * repeats);
  std::vector<double> last(executors.size(), 0.0);
  std::vector<size_t> order(executors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 random(seed);
  for (int round = -warmup; round < repeats; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order) {
      if (primed && last[i] < kLongSeconds) executors[i]->Time(1);
      const double took = executors[i]->Time(1);
      last[i] = took;
      if (round >= 0) seconds[i * repeats + round] = took;
    }
  }
  return seconds;
}

}  // namespace tvm_interop
