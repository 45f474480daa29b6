#include "passes/schedulers/gpu_refine.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "passes/schedulers/gpu_annealed.h"

namespace tvm_interop {
namespace {

// The temperatures of the simulated annealing at the beginning and at the end of the search, as
// shares of the mean latency of an operator.
constexpr double kHottest = 0.2;
constexpr double kColdest = 0.002;
constexpr int kTrialsBetweenClocks = 64;

}  // namespace

RefineResult RefineOnGpus(const GpuCosts& costs, const GpuStages& initial,
                          const StagePrices& prices, const RefineOptions& options) {
  Annealed state(costs, initial, prices, options.window, options.seed);
  Note best;
  state.Write(&best);
  double mean_us = 0;
  for (int rank = 0; rank < costs.num_ops(); ++rank) mean_us += costs.us(rank);
  mean_us /= std::max(costs.num_ops(), 1);
  const double hottest_us = kHottest * mean_us;

  Dice dice(options.seed + 1);
  const auto started = std::chrono::steady_clock::now();
  double heat_us = hottest_us;
  const double longest_path_us = state.longest_path_us();
  RefineResult result;
  // No schedule is shorter than the longest path through the graph, counted without the time of
  // copies.
  for (; result.trials < options.trials && best.makespan_us > longest_path_us; ++result.trials) {
    if (result.trials % kTrialsBetweenClocks == 0) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
      result.is_cut_short = elapsed.count() >= options.time_limit_s;
      if (result.is_cut_short) break;
      const double done = static_cast<double>(result.trials) / static_cast<double>(options.trials);
      heat_us = hottest_us * std::pow(kColdest / kHottest, done);
    }
    // By the rule of Metropolis, a change that makes the makespan longer by d is kept with
    // probability exp(-d / temperature). The random number is drawn before the change. From it
    // follows the largest makespan with which the change is kept. The computation of the makespan
    // can stop at this limit.
    const double slack_us = -heat_us * std::log(1.0 - dice.Share());
    state.Change(std::nextafter(state.makespan_us() + slack_us, Annealed::kTooLate));
    if (state.makespan_us() < best.makespan_us) state.Write(&best);
  }
  result.schedule = state.Read(best);
  return result;
}

}  // namespace tvm_interop
