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
  // and takes 8 bytes. The stages may take about as much memory again. While a part is searched,
  // its sets of operators may take as much memory too.
  int64_t max_transitions = 8'000'000;
  // Whether to cut a block that needs more transitions than it may have. If false, the block is
  // left out.
  bool cuts = true;
  // A function that says whether the search must end early. Once it returns true, the remaining
  // blocks are left out. It is called only if `cuts` is false.
  std::function<bool()> is_over = [] { return false; };
};

struct IosStats {
  int64_t blocks = 0;
  int64_t parts_cut = 0;    // cuts made because a block had too many transitions
  int64_t states = 0;       // nonempty states
  int64_t transitions = 0;  // pairs of a state and one of its endings
  int64_t stages = 0;       // distinct endings

  // The number of possible schedules. It is the product, over all parts, of the number of sequences
  // of stages that run the part.
  double schedules = 1;
};

class PartSearch;

// IOS: dynamic programming over the endings of a graph (Ding et al. 2021, Algorithm 1). It works
// block by block and uses concurrent execution only. The constructor enumerates all stages, so that
// their latencies can be asked for in one batch. The latency of a stage is called its price here.
// `Solve` then finds the cheapest schedule: the schedule with the lowest sum of prices.
//
// A transition is a state and one of its endings. Each block may use an equal share of the limit
// `max_transitions`. The blocks that need the fewest transitions come first. Transitions that a
// block does not use are left to the blocks after it. A block that needs more than its share is
// left out or cut in two. A part that is still too large is cut again. Each part is searched
// separately. This bounds the memory, but the schedule is then only optimal between the cuts. A
// part of one operator is never cut: its one transition is kept even if it exceeds the limit.
//
// A cut separates operators that can start early from operators that can start late. It is near the
// middle of the block, at a position where operators after the cut read few operators before it.
class IosSearch {
 public:
  // Searches all of `graph`, which must outlive the search. `op_us` holds the latencies of the
  // operators. These latencies determine when operators can start, and so where blocks are cut. If
  // `op_us` is empty, all operators count as equally long.
  IosSearch(const OpGraph& graph, const IosOptions& options, const std::vector<double>& op_us = {});
  // Searches windows of neighbouring stages in a known list of stages. In each window, it finds all
  // stages that can be made of the window's operators. A window has as many stages as
  // `max_transitions_of_window` allows. The first window has at most `first_window` stages. A stage
  // in no window stays as it is. Once `is_over` returns true, all remaining stages stay as they
  // are.
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
  // For each block that was left out of the search, its operators in topological order.
  const std::vector<std::vector<int>>& left_out() const { return left_out_; }
  // How many transitions were looked at, including the transitions of parts that had too many
  // transitions.
  int64_t transitions_tried() const { return transitions_tried_; }
  // The graph that is searched.
  const OpGraph& graph() const { return graph_; }

  // The cheapest schedule if stage i takes `price_us[i]`, with each group on a stream of its own.
  // Among equally cheap endings of a state, the first in enumeration order is taken. A time of
  // infinity marks a stage that must not be chosen. Throws ScheduleError if a time is missing.
  // Throws LatencyError, naming the operators, if a time is negative or not a number.
  Schedule Solve(const std::vector<double>& price_us) const;

  // Throws ScheduleError unless there is one price (latency) for each of `stages`. Throws
  // LatencyError, naming the operators, if a price is negative or not a number.
  void CheckPrices(const std::vector<size_t>& stages, const std::vector<double>& price_us) const;

 private:
  struct Part {
    std::unique_ptr<PartSearch> search;
    StageBatch stages;
  };

  // Searches the schedule of the operators as one part of the graph, and appends the part to
  // `parts`. Returns false, and appends nothing, if the part has more than `max_transitions`
  // transitions or `is_over` returns true.
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
