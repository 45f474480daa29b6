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
  // The most transitions kept for the whole graph. A transition is a state and one of its endings,
  // and takes 8 bytes. The stages may take about as much memory again. So may the sets of operators
  // of one part while the part is searched.
  int64_t max_transitions = 8'000'000;
  // Whether a block with more transitions than its share is cut. Otherwise the block is left out.
  bool cuts = true;
  // Called now and then if blocks are not cut. Once it returns true, no further block is
  // enumerated, and the blocks that were not enumerated are left out.
  std::function<bool()> is_over = [] { return false; };
};

struct IosStats {
  int64_t blocks = 0;
  int64_t parts_cut = 0;    // cuts made because a block had too many transitions
  int64_t states = 0;       // nonempty states
  int64_t transitions = 0;  // pairs of a state and one of its endings
  int64_t stages = 0;       // distinct endings
  // The number of possible schedules: the number of ways through each part, multiplied over all
  // parts.
  double schedules = 1;
};

class PartSearch;

// IOS: dynamic programming over the endings of a graph (Ding et al. 2021, Algorithm 1). It works
// block by block and uses concurrent execution only. The constructor enumerates all stages, so that
// they can be priced in one batch. `Solve` then finds the cheapest schedule.
//
// The blocks share `max_transitions` evenly. The blocks that need the fewest transitions come
// first. Transitions that a block does not use are left to the blocks after it. A block that needs
// more than its share is left out or cut in two. Its parts are cut again if need be, and each part
// is searched by itself. This bounds the memory, but the schedule is then only optimal between the
// cuts. A part of one operator is never cut: its one transition is kept even if it exceeds the
// limit.
//
// A cut separates operators that can start early from operators that can start late. It lies near
// the middle of the block, where few operators before it are read by operators after it.
class IosSearch {
 public:
  // Searches all of `graph`, which must outlive the search. `op_us` holds the latencies of the
  // operators. They determine when operators can start, and so where cuts lie. `op_us` is empty if
  // all operators take equally long.
  IosSearch(const OpGraph& graph, const IosOptions& options, const std::vector<double>& op_us = {});
  // Searches windows of neighbouring stages in a known list of stages. In each window it looks for
  // all stages that can be made of the window's operators. A window is as wide as
  // `max_transitions_of_window` allows. The first window is at most `first_window` stages wide. A
  // stage in no window stays as it is, and so does every stage that is left once `is_over` returns
  // true.
  IosSearch(const OpGraph& graph, const EndingLimits& limits,
            const std::vector<std::vector<int>>& stages, size_t first_window,
            int64_t max_transitions_of_window, const std::function<bool()>& is_over);
  ~IosSearch();
  IosSearch(const IosSearch&) = delete;
  IosSearch& operator=(const IosSearch&) = delete;

  // The distinct stages. Groups are sorted by first operator, and their operators are in
  // topological order.
  const StageBatch& stages() const { return stages_; }
  const IosStats& stats() const { return stats_; }
  // The parts, in the order in which they run.
  const std::vector<std::unique_ptr<PartSearch>>& parts() const { return parts_; }
  // The operators of each block that was left out, in topological order.
  const std::vector<std::vector<int>>& left_out() const { return left_out_; }
  // How many transitions were looked at, including those of parts that had too many.
  int64_t transitions_tried() const { return transitions_tried_; }
  // The graph that is searched.
  const OpGraph& graph() const { return graph_; }

  // The cheapest schedule if stage i takes `price_us[i]`, with each group on a stream of its own.
  // Among equally cheap endings of a state, the first in enumeration order is taken. A price of
  // infinity marks a stage that must not be chosen. Throws ScheduleError if a price is missing.
  // Throws LatencyError, naming the operators, if a price is negative or not a number.
  Schedule Solve(const std::vector<double>& price_us) const;

  // Throws ScheduleError unless there is one price for each of `stages`. Throws LatencyError,
  // naming the operators, if a price is negative or not a number.
  void CheckPrices(const std::vector<size_t>& stages, const std::vector<double>& price_us) const;

 private:
  struct Part {
    std::unique_ptr<PartSearch> search;
    StageBatch stages;
  };

  // Searches the operators as one part and appends the part. Returns false, and appends nothing, if
  // the part has more than `max_transitions` transitions or `is_over` returns true.
  bool SearchWhole(const std::vector<int>& ops, const EndingLimits& limits, int64_t max_transitions,
                   const std::function<bool()>& is_over, std::vector<Part>* parts);
  // Searches the operators and appends the parts. Cuts the parts until none has more than
  // `max_transitions` transitions.
  void Search(const std::vector<int>& ops, const EndingLimits& limits, int64_t max_transitions,
              const std::vector<int>& early_first, std::vector<Part>* parts);

  // Adds a part after the existing parts.
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
