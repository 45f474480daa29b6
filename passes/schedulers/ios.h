#ifndef PASSES_SCHEDULERS_IOS_H_
#define PASSES_SCHEDULERS_IOS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/endings.h"
#include "passes/schedulers/schedule.h"
#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

struct IosOptions {
  EndingLimits limits{3, 8, false};
  // The most transitions (a state and one of its endings, 8 bytes each) kept for the whole graph.
  // The stages may take about as much memory again, and so may, while it is searched, the sets of
  // operators of one part.
  int64_t max_transitions = 8'000'000;
  // Whether a block with more than its share is cut; otherwise it is left out.
  bool cuts = true;
  // Asked now and then. Once it returns true, no further block is enumerated: blocks that were not
  // enumerated are left out. It is not asked where blocks are cut.
  std::function<bool()> is_over = [] { return false; };
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
// what one leaves goes to those after it. A block with more than its share is left out, or cut in
// two, again if need be, and each part is searched by itself: bounded memory for a schedule that is
// then only optimal between the cuts. (Every operator has a transition at least.) A cut lies
// between operators that can start early and those that start late, near the middle, where few
// operators are read across it.
class IosSearch {
 public:
  // All of `graph`, which must outlive the search. `op_us` says when operators can start; empty if
  // all take equally long.
  IosSearch(const OpGraph& graph, const IosOptions& options, const std::vector<double>& op_us = {});
  // Stages that are known, and what can be made of their operators in windows of neighbouring
  // stages: each as wide as `max_transitions_of_window` lets it be, the first of them
  // `first_window` stages wide at most. A stage that is in no window stays as it is, and so does
  // each that is left once `is_over` is true.
  IosSearch(const OpGraph& graph, const EndingLimits& limits,
            const std::vector<std::vector<int>>& stages, size_t first_window,
            int64_t max_transitions_of_window, const std::function<bool()>& is_over);
  ~IosSearch();
  IosSearch(const IosSearch&) = delete;
  IosSearch& operator=(const IosSearch&) = delete;

  // The distinct stages, each operator list in topological order, groups by first operator.
  const StageBatch& stages() const { return stages_; }
  const IosStats& stats() const { return stats_; }
  // The parts, in the order in which they run.
  const std::vector<std::unique_ptr<PartSearch>>& parts() const { return parts_; }
  // The operators of each block that was left out, in topological order.
  const std::vector<std::vector<int>>& left_out() const { return left_out_; }
  // How many transitions were looked at, those of parts that turned out to have too many too.
  int64_t transitions_tried() const { return transitions_tried_; }
  // Which operator has which name.
  const OpGraph& graph() const { return graph_; }

  // The cheapest schedule when stage i takes `price_us[i]`, each group on a stream of its own. Of
  // equally cheap endings of a state the first in enumeration order is taken. Infinity stands for a
  // stage that must not be chosen. Throws ScheduleError for a price that is missing, negative or
  // not a number.
  Schedule Solve(const std::vector<double>& price_us) const;

  // Throws ScheduleError, naming the operators, unless there is a usable price for each of
  // `stages`.
  void CheckPrices(const std::vector<size_t>& stages, const std::vector<double>& price_us) const;

 private:
  struct Part {
    std::unique_ptr<PartSearch> search;
    StageBatch stages;
  };

  // Appends the part that these operators make, unless it has more than `max_transitions` or time
  // is over.
  bool SearchWhole(const std::vector<int>& ops, const EndingLimits& limits, int64_t max_transitions,
                   const std::function<bool()>& is_over, std::vector<Part>* parts);
  // Appends the parts that they are searched as, cut until they have no more.
  void Search(const std::vector<int>& ops, const EndingLimits& limits, int64_t max_transitions,
              const std::vector<int>& early_first, std::vector<Part>* parts);

  // Takes over a part behind those that it has.
  void Append(Part part);

  const OpGraph& graph_;
  std::vector<std::unique_ptr<PartSearch>> parts_;
  std::vector<std::vector<int>> left_out_;
  StageBatch stages_;
  IosStats stats_;
  int64_t transitions_tried_ = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_IOS_H_
