// Tests the pool of threads and its two kinds of jobs: streams that any thread may serve, and
// parallel loops. In builds with sanitizers, a thread that claims a stream yields and sleeps
// between the steps of the claim, so that other threads come between.

#include "runtime/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cpu/executor.h"
#include "runtime/cpu/float_mode.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/topology.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_model.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using tvm_interop::CpuExecutor;
using tvm_interop::Kernel;
using tvm_interop::PlannedOp;
using tvm_interop::RunParallelLoop;
using tvm_interop::ThreadPool;

namespace {

int ThreadsNow() { return ThreadPool::Get().num_helpers() + 1; }

TEST_CASE(ByDefaultAsManyThreadsAsCores) {
  CHECK_EQ(ThreadPool::Get().num_threads(), tvm_interop::AllowedCores());
  CHECK_EQ(ThreadPool::Get().num_helpers(), 0);
}

TEST_CASE(HelpersStartWhenTheyAreWantedAndEndWhenTheyAreNot) {
  ThreadPool& pool = ThreadPool::Get();
  pool.SetNumThreads(5);
  CHECK_EQ(ThreadsNow(), 1);
  RandomModel model(3, 3);
  CHECK_EQ(ThreadsNow(), 3);
  RandomModel wider(4, 8);
  CHECK_EQ(ThreadsNow(), 5);
  wider.Check(1);
  pool.SetNumThreads(2);
  CHECK_EQ(ThreadsNow(), 2);
  wider.Check(2);
  pool.SetNumThreads(1);
  CHECK_EQ(ThreadsNow(), 1);
  wider.Check(3);
  CHECK_THROWS(pool.SetNumThreads(0), std::runtime_error);
  pool.SetNumThreads(4);
}

TEST_CASE(EveryOrderHoldsWhoeverServesTheStreams) {
  for (unsigned seed = 0; seed < kGraphs; ++seed) {
    RandomModel model(seed, 1 + static_cast<int>(seed) % 5);
    for (int run = 0; run < kRuns; ++run) model.Check(run * 1000);
  }
}

TEST_CASE(SeveralThreadsRunModelsAtOnce) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([t] {
      for (unsigned seed = 0; seed < kGraphs / 4; ++seed) {
        // The model is made and destroyed while helpers look at models of other threads.
        RandomModel model(100 * t + seed, 2 + static_cast<int>(t));
        for (int run = 0; run < kRuns / 2; ++run) model.Check(run);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(RunsAfterAPauseFindTheHelpersAsleep) {
  RandomModel model(7, 3);
  for (int run = 0; run < 50; ++run) {
    std::this_thread::sleep_for(std::chrono::microseconds(run % 2 == 0 ? 500 : 40));
    model.Check(run);
  }
}

TEST_CASE(ARunEndsWhereNoHelperEverComes) {
  // Another thread runs a model that keeps all helpers busy, as if no helper had a core.
  struct HoldingKernel : Kernel {
    void Run() override {
      held.fetch_add(1);
      while (!may_end.load()) std::this_thread::yield();
    }
    std::atomic<int> held{0};
    std::atomic<bool> may_end{false};
  } holding;
  const int threads = ThreadPool::Get().num_threads();
  std::vector<HoldingKernel> kernels(threads);
  std::vector<PlannedOp> ops;
  for (int s = 0; s < threads; ++s) ops.push_back({"held", &kernels[s], s, {}});
  CpuExecutor holder(threads, 1, ops);
  std::thread other([&] { holder.Run(); });
  const auto all_held = [&] {
    return std::all_of(kernels.begin(), kernels.end(),
                       [](const HoldingKernel& kernel) { return kernel.held.load() > 0; });
  };
  while (!all_held()) std::this_thread::yield();
  RandomModel model(11, 3);
  for (int run = 0; run < 20; ++run) model.Check(run);
  for (HoldingKernel& kernel : kernels) kernel.may_end = true;
  other.join();
}

TEST_CASE(AWaitIsNotTakenForOverBecauseItWasInTheLastRun) {
  // A helper that has run the last operator may go on to stream 0, which the caller opens first for
  // the next run. Stream 0 waits for stream 2, which may still be in its state of the last run.
  SumKernel first, second, third;
  long values[3] = {0, 0, 0};
  second.operands = {&values[0]};
  third.operands = {&values[1]};
  SumKernel* const kernels[] = {&first, &second, &third};
  for (int op = 0; op < 3; ++op) kernels[op]->result = &values[op];
  CpuExecutor executor(
      3, 1, {{"first", &first, 2, {}}, {"second", &second, 0, {0}}, {"third", &third, 1, {1}}});
  for (long run = 0; run < 100 * kRuns; ++run) {
    first.add = run;
    executor.Run();
    CHECK_EQ(values[2], run);
  }
}

TEST_CASE(AHelperJustStartedMayBeLookedAtInItsFirstOperator) {
  // A caller with nothing left to do checks whether a helper that it waits for has lost its core.
  ThreadPool& pool = ThreadPool::Get();
  struct Long : Kernel {
    void Run() override { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
  } here, there;
  CpuExecutor executor(2, 1, {{"here", &here, 0, {}}, {"there", &there, 1, {}}});
  for (int run = 0; run < 20; ++run) {
    pool.SetNumThreads(1);
    pool.SetNumThreads(2);
    executor.Run();
  }
  pool.SetNumThreads(4);
}

TEST_CASE(ThreadsBecomeFewerWhileAHelperIsAtWork) {
  // A helper may need the pool in the middle of an operator, for example to lend its core. Another
  // thread waits meanwhile for the end of the helper.
  ThreadPool& pool = ThreadPool::Get();
  pool.SetNumThreads(2);
  static std::atomic<bool> has_begun{false}, may_go_on{false};
  has_begun = may_go_on = false;
  struct Here : Kernel {
    void Run() override {
      while (!has_begun.load()) std::this_thread::yield();
    }
  } here;
  struct There : Kernel {
    void Run() override {
      has_begun = true;
      while (!may_go_on.load()) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      RandomModel(5, 2).Check(1);
    }
  } there;
  CpuExecutor executor(2, 1, {{"here", &here, 0, {}}, {"there", &there, 1, {}}});
  std::thread runner([&] { executor.Run(); });
  while (!has_begun.load()) std::this_thread::yield();
  std::promise<void> changed;
  std::thread changer([&] {
    may_go_on = true;
    pool.SetNumThreads(1);
    changed.set_value();
  });
  const bool ended =
      changed.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  if (!ended) std::abort();  // The threads wait for each other, and cannot be joined.
  changer.join();
  runner.join();
  CHECK_EQ(ThreadsNow(), 1);
  pool.SetNumThreads(4);
}

TEST_CASE(AThreadThatIsHeldUpHoldsUpOnlyWhatDependsOnIt) {
  // The slow operator ends only after all operators on other streams, which do not depend on it,
  // have run.
  std::atomic<int> others{0};
  struct Slow : Kernel {
    void Run() override {
      while (others->load() < 6) std::this_thread::yield();
    }
    std::atomic<int>* others;
  } slow;
  slow.others = &others;
  struct Quick : Kernel {
    void Run() override { others->fetch_add(1); }
    std::atomic<int>* others;
  } quick;
  quick.others = &others;
  std::vector<PlannedOp> ops{{"slow", &slow, 0, {}}};
  std::vector<std::unique_ptr<Quick>> kernels;
  for (int i = 0; i < 6; ++i) {
    kernels.push_back(std::make_unique<Quick>(quick));
    ops.push_back({"quick", kernels.back().get(), 1 + i % 3, {}});
  }
  ops.push_back({"last", &quick, 0, {}});
  CpuExecutor executor(4, 1, ops);
  for (int run = 0; run < 50; ++run) {
    others = 0;
    executor.Run();
    CHECK_EQ(others.load(), 7);
  }
}

TEST_CASE(ThreadsThatWorkAreNoMoreThanAskedFor) {
  ThreadPool& pool = ThreadPool::Get();
  pool.SetNumThreads(3);
  static std::atomic<int> working{0}, most{0};
  struct Counting : Kernel {
    void Run() override {
      const int now = working.fetch_add(1) + 1;
      int seen = most.load();
      while (seen < now && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      working.fetch_sub(1);
    }
  };
  most = 0;
  std::vector<Counting> kernels(48);
  std::vector<PlannedOp> ops;
  for (int i = 0; i < 48; ++i) ops.push_back({"op", &kernels[i], i % 6, {}});
  CpuExecutor executor(6, 1, ops);
  for (int run = 0; run < 10; ++run) executor.Run();
  CHECK(most.load() <= 3);
  pool.SetNumThreads(4);
}

TEST_CASE(HelpersStayAwayWhereCallersAreAsManyAsThreads) {
  ThreadPool& pool = ThreadPool::Get();
  pool.SetNumThreads(2);
  struct Held : Kernel {
    void Run() override {
      is_there = true;
      while (!may_end.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    std::atomic<bool> is_there{false};
    std::atomic<bool> may_end{false};
  } held;
  CpuExecutor holder(1, 1, {{"held", &held, 0, {}}});
  std::thread other([&] { holder.Run(); });
  while (!held.is_there.load()) std::this_thread::yield();
  struct Placed : Kernel {
    void Run() override {
      ran_here = std::this_thread::get_id() == caller;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    std::thread::id caller = std::this_thread::get_id();
    bool ran_here = false;
  };
  std::vector<Placed> kernels(24);
  std::vector<PlannedOp> ops;
  for (int i = 0; i < 24; ++i) ops.push_back({"op", &kernels[i], i % 4, {}});
  CpuExecutor executor(4, 1, ops);
  int elsewhere = 0;
  for (int run = 0; run < 8; ++run) {
    executor.Run();
    for (const Placed& kernel : kernels) elsewhere += kernel.ran_here ? 0 : 1;
  }
  // A few operators may run on a helper that took them just before the second caller came.
  CHECK(elsewhere < 24);
  held.may_end = true;
  other.join();
  pool.SetNumThreads(4);
}

TEST_CASE(ModelsComeAndGoWhileHelpersLook) {
  for (int i = 0; i < 50 * kGraphs; ++i) {
    SumKernel first, second;
    long values[2] = {0, 0};
    first.add = second.add = i;
    first.result = &values[0];
    second.result = &values[1];
    std::make_unique<CpuExecutor>(
        2, 1, std::vector<PlannedOp>{{"first", &first, 0, {}}, {"second", &second, 1, {}}})
        ->Run();
    CHECK_EQ(values[0] + values[1], 2L * i);
  }
}

#if defined(__x86_64__)
TEST_CASE(EveryThreadRoundsAsTheCallerDoes) {
  struct Mode : Kernel {
    void Run() override {
      seen = _mm_getcsr() & ~0x3fu;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    unsigned seen = 0;
  };
  std::vector<Mode> kernels(24);
  std::vector<PlannedOp> ops;
  for (int i = 0; i < 24; ++i) ops.push_back({"op", &kernels[i], i % 3, {}});
  CpuExecutor executor(3, 1, ops);
  const unsigned before = _mm_getcsr();
  // The modes are: denormals count as zero, the default mode, and rounding towards zero.
  for (const unsigned mode : {0x9fc0u, 0x1f80u, 0x7f80u}) {
    _mm_setcsr(mode);
    executor.Run();
    std::atomic<int> wrong{0};
    struct Data {
      unsigned mode;
      std::atomic<int>* wrong;
    } data{mode, &wrong};
    RunParallelLoop(
        [](int, int, void* given) {
          const auto* expected = static_cast<Data*>(given);
          if ((_mm_getcsr() & ~0x3fu) != expected->mode) expected->wrong->fetch_add(1);
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          return 0;
        },
        &data, 12);
    _mm_setcsr(before);
    for (const Mode& kernel : kernels) CHECK_EQ(kernel.seen, mode);
    CHECK_EQ(wrong.load(), 0);
  }
}
#endif

struct LoopData {
  std::vector<long> in, out;
  long add = 0;
};

int AddTask(int task, int tasks, void* given) {
  auto* data = static_cast<LoopData*>(given);
  const size_t size = data->in.size();
  const size_t begin = size * task / tasks;
  const size_t end = size * (task + 1) / tasks;
  for (size_t i = begin; i < end; ++i) data->out[i] += data->in[i] + data->add;
  return 0;
}

void CheckLoops(int loops, int tasks) {
  LoopData data;
  data.in.resize(200);
  for (size_t i = 0; i < data.in.size(); ++i) data.in[i] = static_cast<long>(i);
  for (int loop = 0; loop < loops; ++loop) {
    data.out.assign(data.in.size(), 0);
    data.add = loop;
    CHECK_EQ(RunParallelLoop(AddTask, &data, tasks), 0);
    // A task that ran twice would add its numbers twice.
    for (size_t i = 0; i < data.in.size(); ++i) CHECK_EQ(data.out[i], static_cast<long>(i) + loop);
  }
}

TEST_CASE(ALoopRunsEachTaskOnce) {
  for (int tasks : {1, 2, 3, 4, 7, 64}) CheckLoops(kRuns, tasks);
}

TEST_CASE(ALateHelperTakesNoTaskOfTheNextLoop) {
  // All loops have the same number of tasks, so a helper can tell two loops apart only by the
  // number of the loop.
  struct Counted {
    std::atomic<int> ran[2] = {};
  } loops[2];
  const auto body = [](int task, int, void* data) {
    static_cast<Counted*>(data)->ran[task].fetch_add(1);
    return 0;
  };
  for (int loop = 0; loop < 200 * kRuns; ++loop) {
    Counted& counted = loops[loop % 2];
    CHECK_EQ(RunParallelLoop(body, &counted, 2), 0);
    CHECK_EQ(counted.ran[0].exchange(0), 1);
    CHECK_EQ(counted.ran[1].exchange(0), 1);
  }
}

TEST_CASE(LoopsOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) threads.emplace_back([t] { CheckLoops(kRuns, 2 + t); });
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(LoopsWithinOperatorsAndWithinLoops) {
  struct LoopKernel : Kernel {
    void Run() override {
      std::vector<LoopData> data(3);
      for (LoopData& each : data) {
        each.in.assign(50, 1);
        each.out.assign(50, 0);
      }
      RunParallelLoop(
          [](int task, int, void* given) {
            return RunParallelLoop(AddTask, static_cast<LoopData*>(given) + task, 4);
          },
          data.data(), 3);
      total = 0;
      for (const LoopData& each : data) {
        for (long value : each.out) total += value;
      }
    }
    long total = 0;
  };
  std::vector<LoopKernel> kernels(6);
  std::vector<PlannedOp> ops;
  for (int i = 0; i < 6; ++i) {
    // The operators run one after the other, and alternate between two streams.
    ops.push_back(
        {"op", &kernels[i], i % 2, i == 0 ? std::vector<int>{} : std::vector<int>{i - 1}});
  }
  CpuExecutor executor(2, 2, ops);
  for (int run = 0; run < 20; ++run) {
    executor.Run();
    for (const LoopKernel& kernel : kernels) CHECK_EQ(kernel.total, 150L);
  }
}

TEST_CASE(AFailedTaskIsTold) {
  for (int run = 0; run < 50; ++run) {
    const auto fails = [](int task, int, void*) { return task == 5 ? -7 : 0; };
    CHECK_EQ(RunParallelLoop(fails, nullptr, 8), -7);
    const auto works = [](int, int, void*) { return 0; };
    CHECK_EQ(RunParallelLoop(works, nullptr, 8), 0);
  }
}

}  // namespace
