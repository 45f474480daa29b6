#include "runtime/cpu_executor.h"

#include <sched.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cpu_topology.h"
#include "runtime/measure.h"
#include "tests/cpp/check.h"

using tvm_interop::CpuExecutor;
using tvm_interop::CpuStreams;
using tvm_interop::CpuStreamsOptions;
using tvm_interop::Event;
using tvm_interop::Kernel;
using tvm_interop::OpTiming;
using tvm_interop::PlannedOp;

namespace {

// Adds its operands, which other streams may have written: plain memory, so that ThreadSanitizer
// sees a race wherever an event orders too little.
class SumKernel : public Kernel {
 public:
  SumKernel(std::vector<const long*> operands, long add, long* result)
      : operands_(std::move(operands)), add_(add), result_(result) {}
  void Run() override {
    long sum = add_;
    for (const long* operand : operands_) sum += *operand;
    *result_ = sum;
  }

 private:
  std::vector<const long*> operands_;
  long add_;
  long* result_;
};

class FailingKernel : public Kernel {
 public:
  void Run() override {
    if (fails) throw std::runtime_error("no such luck");
  }
  bool fails = true;
};

class CountingKernel : public Kernel {
 public:
  void Run() override { ++count; }
  int count = 0;
};

std::shared_ptr<CpuStreams> Streams(int number, int spin_us = 50) {
  CpuStreamsOptions options;
  options.num_streams = number;
  options.spin = std::chrono::microseconds(spin_us);
  return std::make_shared<CpuStreams>(options);
}

// source -> (left, right) -> join, over and over, the two sides on two streams; `input` changes
// every run, so a result left over from an earlier one is seen.
struct Diamond {
  long input = 0, source = 0, left = 0, right = 0, join = 0;
  SumKernel source_kernel{{&input}, 1, &source};
  SumKernel left_kernel{{&source}, 10, &left};
  SumKernel right_kernel{{&source}, 100, &right};
  SumKernel join_kernel{{&left, &right}, 0, &join};
  std::vector<PlannedOp> ops{{"source", &source_kernel, 0, {}},
                             {"left", &left_kernel, 0, {}},
                             {"right", &right_kernel, 1, {0}},
                             {"join", &join_kernel, 0, {2}}};
  long Expected() const { return 2 * (input + 1) + 110; }
};

// First of all: once a run had kept the affinity, there would be nothing left to lose.
TEST_CASE(TheCallersAffinityIsGivenBack) {
  const std::vector<int> before = tvm_interop::AllowedCpus();
  Diamond diamond;
  CpuExecutor executor(Streams(2), diamond.ops);
  executor.Run();
  CHECK(tvm_interop::AllowedCpus() == before);
}

TEST_CASE(OneStreamRunsOnTheCallingThread) {
  class ThreadKernel : public Kernel {
   public:
    void Run() override { ran_on = std::this_thread::get_id(); }
    std::thread::id ran_on;
  } kernel;
  CpuExecutor executor(Streams(1), {{"only", &kernel, 0, {}}});
  executor.Run();
  CHECK(kernel.ran_on == std::this_thread::get_id());
}

TEST_CASE(EveryRunSeesItsOwnInput) {
  for (int spin_us : {0, 50}) {
    Diamond diamond;
    CpuExecutor executor(Streams(2, spin_us), diamond.ops);
    for (diamond.input = 0; diamond.input < 3000; ++diamond.input) {
      executor.Run();
      CHECK_EQ(diamond.join, diamond.Expected());
    }
  }
}

TEST_CASE(OnlyOperatorsWaitedForGetAnEvent) {
  Diamond diamond;
  CpuExecutor executor(Streams(2), diamond.ops);
  CHECK_EQ(executor.num_events(), 2);
}

TEST_CASE(ManyStreamsOnFewCores) {
  constexpr int kStreams = 8;
  std::vector<long> values(kStreams, 0);
  long total = 0;
  std::vector<std::unique_ptr<SumKernel>> kernels;
  std::vector<PlannedOp> ops;
  std::vector<const long*> all;
  std::vector<int> waits;
  for (int s = 0; s < kStreams; ++s) {
    kernels.push_back(
        std::make_unique<SumKernel>(std::vector<const long*>{&values[s]}, s, &values[s]));
    ops.push_back({"op" + std::to_string(s), kernels.back().get(), s, {}});
    all.push_back(&values[s]);
    if (s > 0) waits.push_back(s);
  }
  SumKernel sum(all, 0, &total);
  ops.push_back({"sum", &sum, 0, waits});
  CpuExecutor executor(Streams(kStreams), ops);
  for (long run = 1; run <= 300; ++run) {
    executor.Run();
    CHECK_EQ(total, run * (kStreams * (kStreams - 1) / 2));
  }
}

TEST_CASE(ExecutorsShareStreams) {
  auto streams = Streams(2);
  Diamond first, second;
  CpuExecutor first_executor(streams, first.ops), second_executor(streams, second.ops);
  for (int run = 0; run < 500; ++run) {
    first.input = run;
    second.input = -run;
    first_executor.Run();
    second_executor.Run();
    CHECK_EQ(first.join, first.Expected());
    CHECK_EQ(second.join, second.Expected());
  }
}

TEST_CASE(AFailureNamesItsOperatorAndTheNextRunWorks) {
  FailingKernel failing;
  CountingKernel after;
  CpuExecutor executor(Streams(2), {{"conv7", &failing, 1, {}}, {"after", &after, 0, {0}}});
  for (int round = 0; round < 100; ++round) {
    std::string message;
    failing.fails = true;
    try {
      executor.Run();
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK_EQ(message, std::string("operator `conv7` failed: no such luck"));
    CHECK_EQ(after.count, round);
    failing.fails = false;
    executor.Run();
    CHECK_EQ(after.count, round + 1);
  }
}

TEST_CASE(OfTwoFailuresAtOnceOneIsTold) {
  FailingKernel left, right;
  CpuExecutor executor(Streams(2), {{"left", &left, 0, {}}, {"right", &right, 1, {}}});
  for (int round = 0; round < 300; ++round) {
    std::string message;
    try {
      executor.Run();
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(message == "operator `left` failed: no such luck" ||
          message == "operator `right` failed: no such luck");
  }
}

TEST_CASE(ABadPlanIsRefused) {
  CountingKernel kernel;
  CHECK_THROWS(CpuExecutor(Streams(1), {{"a", &kernel, 1, {}}}), std::runtime_error);
  CHECK_THROWS(Streams(0), std::runtime_error);
}

TEST_CASE(TwoThreadsCannotRunOneModule) {
  class WaitingKernel : public Kernel {
   public:
    void Run() override {
      begun.Signal(1);
      may_end.Wait(1, std::chrono::nanoseconds(0));
    }
    Event begun, may_end;
  } kernel;
  CpuExecutor executor(Streams(1), {{"waiting", &kernel, 0, {}}});
  std::thread other([&] { executor.Run(); });
  kernel.begun.Wait(1, std::chrono::nanoseconds(0));
  CHECK_THROWS(executor.Run(), std::runtime_error);
  kernel.may_end.Signal(1);
  other.join();
  executor.Run();
}

TEST_CASE(ProfileCoversEveryOperatorInOrder) {
  Diamond diamond;
  CpuExecutor executor(Streams(2), diamond.ops);
  const std::vector<OpTiming> timings = executor.Profile();
  CHECK_EQ(timings.size(), diamond.ops.size());
  for (const OpTiming& timing : timings) {
    CHECK_EQ(timing.stream, diamond.ops[timing.op].stream);
    CHECK(timing.start_ns >= 0 && timing.start_ns <= timing.end_ns);
    for (int wait : diamond.ops[timing.op].waits) CHECK(timings[wait].end_ns <= timing.start_ns);
  }
}

TEST_CASE(TeamSizeIsSetOnEveryStream) {
  static std::atomic<int> calls{0};
  calls = 0;
  CpuStreamsOptions options;
  options.num_streams = 3;
  options.threads_per_stream = 5;
  options.set_team_size = [](int threads) { calls += threads; };
  Diamond diamond;
  // On a thread of its own: what a thread was told last is remembered.
  std::thread([&] {
    CpuExecutor executor(std::make_shared<CpuStreams>(options), diamond.ops);
    executor.Run();
    executor.Run();
  }).join();
  CHECK_EQ(calls.load(), 3 * 5);
}

TEST_CASE(MeasuringRunsEachContestantAlike) {
  CountingKernel first, second;
  auto streams = Streams(1);
  CpuExecutor first_executor(streams, {{"first", &first, 0, {}}});
  CpuExecutor second_executor(streams, {{"second", &second, 0, {}}});
  const std::vector<double> seconds =
      tvm_interop::MeasureInterleaved({&first_executor, &second_executor}, 2, 5, 0, false);
  CHECK_EQ(seconds.size(), size_t{10});
  CHECK_EQ(first.count, 7);
  CHECK_EQ(second.count, 7);
}

TEST_CASE(ATimedRunIsPrimedIfAskedFor) {
  CountingKernel kernel, other;
  const auto streams = Streams(1);
  CpuExecutor executor(streams, {{"op", &kernel, 0, {}}});
  CpuExecutor other_executor(streams, {{"op", &other, 0, {}}});
  CHECK_EQ(tvm_interop::MeasureInterleaved({&executor, &other_executor}, 1, 3, 0, true).size(),
           size_t{6});
  CHECK_EQ(kernel.count, 8);
  CHECK_EQ(other.count, 8);
}

}  // namespace
