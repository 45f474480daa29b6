#include "passes/schedulers/lios_random.h"

#include <algorithm>
#include <cstddef>
#include <random>

#include "passes/schedulers/list_schedule.h"

namespace tvm_interop {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  // A uniform number in [0, bound). It uses the random engine of the C++ standard library, which
  // gives the same numbers in every implementation. It does not use the library's distributions,
  // whose numbers may differ. Numbers above the last whole multiple of `bound` are drawn again, so
  // that all results are equally likely.
  size_t operator()(size_t bound) {
    const uint64_t surplus = (UINT64_MAX % bound + 1) % bound;
    uint64_t drawn = engine_();
    while (drawn > UINT64_MAX - surplus) drawn = engine_();
    return static_cast<size_t>(drawn % bound);
  }

 private:
  std::mt19937_64 engine_;
};

class RandomWaitList {
 public:
  explicit RandomWaitList(Draw* draw) : draw_(draw) {}

  bool empty() const { return ops_.empty(); }
  void Push(int op) { ops_.push_back(op); }
  int Pop() {
    std::swap(ops_[(*draw_)(ops_.size())], ops_.back());
    const int op = ops_.back();
    ops_.pop_back();
    return op;
  }

 private:
  Draw* draw_;
  std::vector<int> ops_;
};

StreamChoice RandomStream(double ready_us, const FreeStreams& free, size_t num_streams,
                          Draw* draw) {
  const int stream = static_cast<int>((*draw)(num_streams));
  return {stream, std::max(free[stream], ready_us)};
}

size_t StreamsToFill(const OpGraph& graph, int num_streams) {
  return static_cast<size_t>(std::max(1, std::min(graph.num_ops(), num_streams)));
}

}  // namespace

Schedule ScheduleLiosRand1(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                           uint64_t seed) {
  Draw draw(seed);
  return ListSchedule(graph, op_us, num_streams, RandomWaitList(&draw),
                      [](int, double ready_us, const FreeStreams& free, const std::vector<int>&) {
                        return EarliestStream(ready_us, free);
                      });
}

Schedule ScheduleLiosRand2(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                           uint64_t seed) {
  Draw draw(seed);
  const size_t streams = StreamsToFill(graph, num_streams);
  return ListSchedule(graph, op_us, num_streams, PriorityWaitList(op_us),
                      [&](int, double ready_us, const FreeStreams& free, const std::vector<int>&) {
                        return RandomStream(ready_us, free, streams, &draw);
                      });
}

Schedule ScheduleLiosRand(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                          uint64_t seed) {
  Draw draw(seed);
  const size_t streams = StreamsToFill(graph, num_streams);
  return ListSchedule(graph, op_us, num_streams, RandomWaitList(&draw),
                      [&](int, double ready_us, const FreeStreams& free, const std::vector<int>&) {
                        return RandomStream(ready_us, free, streams, &draw);
                      });
}

}  // namespace tvm_interop
