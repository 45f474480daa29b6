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
  // The most transitions (a state and one of its endings, 8 bytes each) kept for the whole graph.
  // The stages may take about as much memory again, and so may, while it is searched, the sets of
  // operators of one part.
  int64_t max_transitions = 8'000'000;
};

struct IosStats {
  int64_t blocks = 0;
  int64_t parts_cut = 0;    // cuts made because a block had too many transitions
  int64_t states = 0;       // nonempty
  int64_t transitions = 0;  // states and one of their endings
  int64_t stages = 0;       // distinct endings
  double schedules = 1;     // ways through the states, over all blocks
};

class PartSearch;

// IOS: dynamic programming over the endings of a graph (Ding et al. 2021, Algorithm 1), block by
// block, concurrent execution only. It enumerates when it is made, so that all the stages can be
// priced in one batch, and solves once they are.
//
// `max_transitions` are shared out evenly between the blocks, those that must have least first;
// what one leaves goes to those after it. A block with more than its share is cut in two halves
// along the topological order, again if need be, and each part is searched by itself: bounded
// memory for a schedule that is then only optimal between the cuts. (Every operator has a
// transition at least.)
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
  // The parts, in the order in which they run.
  const std::vector<std::unique_ptr<PartSearch>>& parts() const { return parts_; }

  // The cheapest schedule when stage i takes `price_us[i]`, each group on a stream of its own. Of
  // equally cheap endings of a state the first in enumeration order is taken. Throws ScheduleError
  // for a price that is missing, negative or not finite.
  Schedule Solve(const std::vector<double>& price_us) const;

  // Throws ScheduleError, naming the operators, unless there is a usable price for each of
  // `stages`.
  void CheckPrices(const std::vector<size_t>& stages, const std::vector<double>& price_us) const;

 private:
  struct Part {
    std::unique_ptr<PartSearch> search;
    StageBatch stages;
  };

  // Appends the part that these operators make, unless it has more than `max_transitions`.
  bool SearchWhole(const std::vector<int>& ops, const EndingLimits& limits, int64_t max_transitions,
                   std::vector<Part>* parts) const;
  // Appends the parts that they are searched as, cut until they have no more.
  void Search(const std::vector<int>& ops, const EndingLimits& limits, int64_t max_transitions,
              std::vector<Part>* parts);

  const OpGraph& graph_;
  std::vector<std::unique_ptr<PartSearch>> parts_;
  StageBatch stages_;
  IosStats stats_;
};

}  // namespace tvm_interop

#endif  // PASSES_IOS_H_
