#ifndef PASSES_SCHEDULERS_LIST_SCHEDULE_H_
#define PASSES_SCHEDULERS_LIST_SCHEDULE_H_

#include <algorithm>
#include <string>
#include <vector>

#include "passes/graph/error.h"
#include "passes/graph/op_graph.h"
#include "passes/schedulers/free_streams.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// The stream chosen for an operator, and the operator's start on it.
struct StreamChoice {
  int stream;
  double start_us;
};

// List scheduling: places the operators one by one. `wait_list` holds the operators that are ready,
// and gives the next operator. `choose(op, ready_us, free, stream_of)` then returns the stream and
// the start of this operator. `stream_of` holds the stream of each operator placed before.
// `wait_list` has Push(op), Pop() and empty(). Operators that become ready together are pushed by
// ascending id. Streams that stay empty are left out.
template <typename WaitList, typename Choose>
Schedule ListSchedule(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                      WaitList wait_list, Choose choose) {
  if (num_streams < 1) {
    throw ScheduleError("`streams` is " + std::to_string(num_streams) + "; it must be 1 or more");
  }
  const int n = graph.num_ops();
  std::vector<int> unscheduled_predecessors(n);
  for (int op = 0; op < n; ++op) {
    unscheduled_predecessors[op] = static_cast<int>(graph.predecessors(op).size());
    if (unscheduled_predecessors[op] == 0) wait_list.Push(op);
  }
  Schedule schedule;
  schedule.timeline.reserve(n);
  schedule.streams.resize(std::min(num_streams, n));
  FreeStreams free(static_cast<int>(schedule.streams.size()));
  std::vector<double> finish_us(n);
  std::vector<int> stream_of(n, -1);
  while (!wait_list.empty()) {
    const int op = wait_list.Pop();
    double ready_us = 0;
    for (int source : graph.predecessors(op)) ready_us = std::max(ready_us, finish_us[source]);
    const StreamChoice chosen = choose(op, ready_us, free, stream_of);
    finish_us[op] = chosen.start_us + op_us[op];
    stream_of[op] = chosen.stream;
    free.Set(chosen.stream, finish_us[op]);
    schedule.streams[chosen.stream].push_back(op);
    schedule.timeline.push_back({op, chosen.stream, chosen.start_us, finish_us[op]});
    schedule.makespan_us = std::max(schedule.makespan_us, finish_us[op]);
    for (int next : graph.successors(op)) {
      if (--unscheduled_predecessors[next] == 0) wait_list.Push(next);
    }
  }
  std::vector<int> renumbered(schedule.streams.size());
  int used = 0;
  for (size_t s = 0; s < schedule.streams.size(); ++s) {
    renumbered[s] = used;
    used += !schedule.streams[s].empty();
  }
  for (Placement& placement : schedule.timeline) placement.stream = renumbered[placement.stream];
  schedule.streams.erase(std::remove_if(schedule.streams.begin(), schedule.streams.end(),
                                        [](const auto& ops) { return ops.empty(); }),
                         schedule.streams.end());
  return schedule;
}

// A wait list that gives the operator of highest priority first. Ties go to the operator that has
// waited longest.
class PriorityWaitList {
 public:
  // `priority` holds the priority of each operator, and must outlive the list.
  explicit PriorityWaitList(const std::vector<double>& priority) : priority_(priority) {}

  bool empty() const { return heap_.empty(); }
  void Push(int op) {
    heap_.push_back({priority_[op], arrivals_++, op});
    std::push_heap(heap_.begin(), heap_.end());
  }
  int Pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    const int op = heap_.back().op;
    heap_.pop_back();
    return op;
  }

 private:
  struct Waiting {
    double priority;
    int arrival;
    int op;
    bool operator<(const Waiting& other) const {
      if (priority != other.priority) return priority < other.priority;
      return arrival > other.arrival;
    }
  };

  const std::vector<double>& priority_;
  std::vector<Waiting> heap_;
  int arrivals_ = 0;
};

// The stream on which the operator finishes first. Ties go to the lowest stream.
inline StreamChoice EarliestStream(double ready_us, const FreeStreams& free) {
  const int stream = free.Earliest(ready_us);
  return {stream, std::max(free[stream], ready_us)};
}

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIST_SCHEDULE_H_
