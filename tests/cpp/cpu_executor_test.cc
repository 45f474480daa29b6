#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/measure.h"
#include "runtime/cpu/executor.h"
#include "tests/cpp/check.h"

using tvm_interop::CpuExecutor;
using tvm_interop::Kernel;
using tvm_interop::OpTiming;
using tvm_interop::PlannedOp;

namespace {

// Adds its operands, which other streams may have written. The operands are in plain memory, so
// ThreadSanitizer reports a race if a wait is missing.
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

// The graph source -> (left, right) -> join, with `left` and `right` on two streams. `input`
// changes in every run, so a value of an earlier run would give a wrong result.
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

TEST_CASE(OneStreamRunsOnTheCallingThread) {
  class ThreadKernel : public Kernel {
   public:
    void Run() override { ran_on = std::this_thread::get_id(); }
    std::thread::id ran_on;
  } kernel;
  CpuExecutor executor(1, 1, {{"only", &kernel, 0, {}}});
  executor.Run();
  CHECK(kernel.ran_on == std::this_thread::get_id());
}

TEST_CASE(EveryRunSeesItsOwnInput) {
  Diamond diamond;
  CpuExecutor executor(2, 1, diamond.ops);
  for (diamond.input = 0; diamond.input < 3000; ++diamond.input) {
    executor.Run();
    CHECK_EQ(diamond.join, diamond.Expected());
  }
}

TEST_CASE(OnlyOperatorsWaitedForGetAnEvent) {
  Diamond diamond;
  CpuExecutor executor(2, 1, diamond.ops);
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
  CpuExecutor executor(kStreams, 1, ops);
  for (long run = 1; run <= 300; ++run) {
    executor.Run();
    CHECK_EQ(total, run * (kStreams * (kStreams - 1) / 2));
  }
}

TEST_CASE(AFailureNamesItsOperatorAndTheNextRunWorks) {
  FailingKernel failing;
  CountingKernel after;
  CpuExecutor executor(2, 1, {{"conv7", &failing, 1, {}}, {"after", &after, 0, {0}}});
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
  CpuExecutor executor(2, 1, {{"left", &left, 0, {}}, {"right", &right, 1, {}}});
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
  CHECK_THROWS(CpuExecutor(1, 1, {{"a", &kernel, 1, {}}}), std::runtime_error);
  CHECK_THROWS(CpuExecutor(0, 1, {}), std::runtime_error);
}

TEST_CASE(TwoThreadsCannotRunOneModule) {
  class WaitingKernel : public Kernel {
   public:
    void Run() override {
      if (runs++ > 0) return;
      begun.set_value();
      may_end.get_future().wait();
    }
    int runs = 0;
    std::promise<void> begun, may_end;
  } kernel;
  CpuExecutor executor(1, 1, {{"waiting", &kernel, 0, {}}});
  std::thread other([&] { executor.Run(); });
  kernel.begun.get_future().wait();
  CHECK_THROWS(executor.Run(), std::runtime_error);
  kernel.may_end.set_value();
  other.join();
  executor.Run();
}

TEST_CASE(ProfileCoversEveryOperatorInOrder) {
  Diamond diamond;
  CpuExecutor executor(2, 1, diamond.ops);
  const std::vector<OpTiming> timings = executor.Profile();
  CHECK_EQ(timings.size(), diamond.ops.size());
  for (const OpTiming& timing : timings) {
    CHECK_EQ(timing.stream, diamond.ops[timing.op].stream);
    CHECK(timing.start_ns >= 0 && timing.start_ns <= timing.end_ns);
    for (int wait : diamond.ops[timing.op].waits) CHECK(timings[wait].end_ns <= timing.start_ns);
  }
}

TEST_CASE(MeasuringRunsEachContestantAlike) {
  CountingKernel first, second;
  CpuExecutor first_executor(1, 1, {{"first", &first, 0, {}}});
  CpuExecutor second_executor(1, 1, {{"second", &second, 0, {}}});
  const std::vector<double> seconds =
      tvm_interop::MeasureInterleaved({&first_executor, &second_executor}, 2, 5, 0, false);
  CHECK_EQ(seconds.size(), size_t{10});
  CHECK_EQ(first.count, 7);
  CHECK_EQ(second.count, 7);
}

TEST_CASE(ATimedRunIsPrimedIfAskedFor) {
  CountingKernel kernel, other;
  CpuExecutor executor(1, 1, {{"op", &kernel, 0, {}}});
  CpuExecutor other_executor(1, 1, {{"op", &other, 0, {}}});
  CHECK_EQ(tvm_interop::MeasureInterleaved({&executor, &other_executor}, 1, 3, 0, true).size(),
           size_t{6});
  CHECK_EQ(kernel.count, 8);
  CHECK_EQ(other.count, 8);
}

// Stands for an executor in a measurement. It takes no time, but says that each run took `seconds`.
class TakesSeconds : public tvm_interop::Timed {
 public:
  explicit TakesSeconds(double seconds) : seconds_(seconds) {}
  double Time(int number) override {
    count += number;
    return number * seconds_;
  }

  int count = 0;

 private:
  double seconds_;
};

TEST_CASE(ALongRunIsPrimedOnlyOnce) {
  TakesSeconds brief(1.5e-3), lengthy(3e-3);
  CHECK_EQ(tvm_interop::MeasureInterleaved({&brief, &lengthy}, 0, 4, 0, true).size(), size_t{8});
  CHECK_EQ(brief.count, 8);
  CHECK_EQ(lengthy.count, 5);
}

}  // namespace
