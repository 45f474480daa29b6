// Models on plain memory for the tests of the executor and its threads.
#ifndef TESTS_CPP_RANDOM_MODEL_H_
#define TESTS_CPP_RANDOM_MODEL_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/plan/sync_plan.h"
#include "runtime/cpu/executor.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

// With a sanitizer, each run takes longer, but fewer runs are enough to find a fault.
#ifdef TVM_INTEROP_FORCED_PREEMPTION
inline constexpr int kGraphs = 12;
inline constexpr int kRuns = 60;
#else
inline constexpr int kGraphs = 40;
inline constexpr int kRuns = 300;
#endif

// Adds up its operands in plain memory, without atomics. So ThreadSanitizer reports a race if the
// executor does not order two accesses to the same memory. If a wait is missing, the sum is wrong.
class SumKernel : public tvm_interop::Kernel {
 public:
  void Run() override {
    CHECK(!inside.exchange(true));
    // If a wait is missing, an operand may still have the value of the run before. The sum is then
    // wrong, because each run gives other values.
    long sum = add;
    for (const long* operand : operands) sum += *operand;
    *result = sum;
    inside.store(false);
  }

  std::vector<const long*> operands;
  long add = 0;
  long* result = nullptr;
  std::atomic<bool> inside{false};
};

// A random graph on random streams, with the fewest waits. All values are in plain memory.
class RandomModel {
 public:
  RandomModel(unsigned seed, int num_streams,
              std::shared_ptr<tvm_interop::ThreadPool> guests = nullptr)
      : graph_(RandomGraph(6 + static_cast<int>(seed) % 30, 0.1 + 0.02 * (seed % 10), seed)),
        values_(graph_.num_ops()),
        kernels_(graph_.num_ops()) {
    const std::vector<std::vector<int>> streams = RandomStreams(graph_, num_streams, seed);
    const std::vector<std::vector<int>> waits = tvm_interop::PlanSync(graph_, streams, {});
    std::vector<int> stream_of(graph_.num_ops());
    for (int s = 0; s < num_streams; ++s) {
      for (int op : streams[s]) stream_of[op] = s;
    }
    const std::vector<int> order = graph_.topological_order();
    std::vector<int> position(graph_.num_ops());
    for (int i = 0; i < graph_.num_ops(); ++i) position[order[i]] = i;
    std::vector<tvm_interop::PlannedOp> ops(graph_.num_ops());
    for (int op = 0; op < graph_.num_ops(); ++op) {
      SumKernel& kernel = kernels_[op];
      for (int source : graph_.predecessors(op)) kernel.operands.push_back(&values_[source]);
      kernel.operands.push_back(&input);
      kernel.add = op;
      kernel.result = &values_[op];
      std::vector<int> planned_waits;
      for (int wait : waits[op]) planned_waits.push_back(position[wait]);
      ops[position[op]] = {"op" + std::to_string(op), &kernel, stream_of[op], planned_waits};
    }
    executor_ = std::make_unique<tvm_interop::CpuExecutor>(num_streams, 1, ops, std::move(guests));
  }

  // Runs the model on `value`, and checks that every operator read the results that it waits for.
  void Check(long value) {
    input = value;
    executor_->Run();
    for (int op : graph_.topological_order()) {
      long expected = op + value;
      for (int source : graph_.predecessors(op)) expected += values_[source];
      CHECK_EQ(values_[op], expected);
    }
  }

  tvm_interop::CpuExecutor& executor() { return *executor_; }
  long input = 0;

 private:
  tvm_interop::OpGraph graph_;
  std::vector<long> values_;
  std::vector<SumKernel> kernels_;
  std::unique_ptr<tvm_interop::CpuExecutor> executor_;
};

#endif  // TESTS_CPP_RANDOM_MODEL_H_
