#ifndef PASSES_IOS_H_
#define PASSES_IOS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "passes/endings.h"
#include "passes/op_graph.h"
#include "passes/schedule.h"
#include "passes/stage_batch.h"

namespace tvm_interop {

struct IosOptions {
  EndingLimits limits{3, 8, false};
  // The most transitions (a state and one of its endings, 8 bytes each) kept for a block. Its sets
  // of operators, and its stages, may take about as much memory again.
  int64_t max_transitions = 20'000'000;
};

struct IosStats {
  int64_t blocks = 0;
  int64_t parts_cut = 0;      // cuts made because a block had too many transitions
  int64_t states = 0;         // nonempty
  int64_t transitions = 0;    // states and one of their endings
  int64_t stages_priced = 0;  // distinct endings
  double schedules = 1;       // ways through the states, over all blocks
};

class PartSearch;

// IOS: dynamic programming over the endings of a graph (Ding et al. 2021, Algorithm 1), block by
// block, concurrent execution only. It enumerates when it is made, so that all the stages can be
// priced in one batch, and solves once they are.
//
// A block with more than `max_transitions` is cut in two halves along the topological order, again
// if need be, and each part is searched by itself: bounded memory for a schedule that is then only
// optimal between the cuts.
class IosSearch {
 public:
  // `graph` must outlive the search.
  IosSearch(const OpGraph& graph, const IosOptions& options);
  ~IosSearch();
  IosSearch(const IosSearch&) = delete;
  IosSearch& operator=(const IosSearch&) = delete;

  // The distinct stages, each operator list in topological order, groups by first operator.
  const StageBatch& stages() const { return stages_; }
  const IosStats& stats() const { return stats_; }

  // The cheapest schedule when stage i takes `price_us[i]`, each group on a stream of its own. Of
  // equally cheap endings of a state the first in enumeration order is taken. Throws ScheduleError
  // for a price that is missing, negative or not finite.
  Schedule Solve(const std::vector<double>& price_us) const;

 private:
  void Search(std::vector<int> ops, const IosOptions& options);
  void CheckPrices(const std::vector<double>& price_us) const;

  const OpGraph& graph_;
  std::vector<std::unique_ptr<PartSearch>> parts_;
  StageBatch stages_;
  IosStats stats_;
};

}  // namespace tvm_interop

#endif  // PASSES_IOS_H_
