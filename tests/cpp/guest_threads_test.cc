// Tests runs on threads that belong to the program. Some of the pools here misbehave: they never
// call a task, call it at once or very late, or refuse it.

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cpu/executor.h"
#include "runtime/cpu/float_mode.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/thread_pool.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_model.h"

using tvm_interop::CpuExecutor;
using tvm_interop::FloatMode;
using tvm_interop::GuestThreads;
using tvm_interop::Kernel;
using tvm_interop::PlannedOp;
using tvm_interop::RunParallelLoop;
using tvm_interop::ThreadPool;

namespace {

struct Task {
  void (*call)(void*);
  void* argument;
};

// A pool as programs have them: some threads that take tasks from a queue.
class ProgramPool {
 public:
  explicit ProgramPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ProgramPool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    wakes_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(Task task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(task);
    }
    wakes_.notify_one();
  }

  std::shared_ptr<ThreadPool> Guests(int number) {
    return ThreadPool::OfGuests({number, [this](void (*call)(void*), void* argument) {
                                   Submit({call, argument});
                                   return true;
                                 }});
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wakes_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const Task task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      task.call(task.argument);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<Task> tasks_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

// Notes which threads run operators.
struct Placed : Kernel {
  void Run() override {
    ran_on = std::this_thread::get_id();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::thread::id ran_on;
};

std::vector<PlannedOp> OnStreams(std::vector<Placed>* kernels, int streams) {
  std::vector<PlannedOp> ops;
  for (size_t i = 0; i < kernels->size(); ++i) {
    ops.push_back({"op", &(*kernels)[i], static_cast<int>(i) % streams, {}});
  }
  return ops;
}

std::set<std::thread::id> ThreadsOf(const std::vector<Placed>& kernels) {
  std::set<std::thread::id> threads;
  for (const Placed& kernel : kernels) threads.insert(kernel.ran_on);
  return threads;
}

TEST_CASE(GuestsHelpAndNoThreadOfOursIsStarted) {
  ProgramPool program(2);
  std::vector<Placed> kernels(24);
  CpuExecutor executor(3, 1, OnStreams(&kernels, 3), program.Guests(2));
  std::set<std::thread::id> threads;
  for (int run = 0; run < 20 && threads.size() < 3; ++run) {
    executor.Run();
    threads.merge(ThreadsOf(kernels));
  }
  CHECK_EQ(threads.size(), size_t{3});
  CHECK_EQ(ThreadPool::Get().num_helpers(), 0);
}

TEST_CASE(EveryOrderHoldsWithGuests) {
  ProgramPool program(3);
  for (unsigned seed = 0; seed < kGraphs; ++seed) {
    RandomModel model(seed, 1 + static_cast<int>(seed) % 5, program.Guests(1 + seed % 4));
    for (int run = 0; run < kRuns; ++run) model.Check(run * 1000);
  }
}

TEST_CASE(SeveralModelsShareTheProgramsThreads) {
  ProgramPool program(2);
  const std::shared_ptr<ThreadPool> shared = program.Guests(2);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned seed = 0; seed < kGraphs / 4; ++seed) {
        RandomModel model(100 * t + seed, 2 + static_cast<int>(t),
                          t == 0 ? program.Guests(2) : shared);
        for (int run = 0; run < kRuns / 2; ++run) model.Check(run);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(ARunEndsWithoutGuests) {
  int refused = 0;
  const auto refuses = [&](void (*)(void*), void*) {
    ++refused;
    return false;
  };
  RandomModel alone(5, 3, ThreadPool::OfGuests({2, refuses}));
  for (int run = 0; run < 20; ++run) alone.Check(run);
  CHECK(refused > 0);
  RandomModel none(5, 3, ThreadPool::OfGuests({0, refuses}));
  const int before = refused;
  none.Check(1);
  CHECK_EQ(refused, before);
}

TEST_CASE(AGuestMayComeWhenAllIsOver) {
  std::vector<Task> kept;
  std::mutex keeping;
  const auto keeps = [&](void (*call)(void*), void* argument) {
    const std::lock_guard<std::mutex> lock(keeping);
    kept.push_back({call, argument});
    return true;
  };
  {
    RandomModel model(5, 5, ThreadPool::OfGuests({2, keeps}));
    for (int run = 0; run < 20; ++run) model.Check(run);
  }
  // Guests are threads of the program's pool that help runs. The pool must get no more tasks than
  // the limit of guests allows, for any number of runs.
  CHECK_EQ(kept.size(), size_t{2});
  for (const Task& task : kept) task.call(task.argument);
}

TEST_CASE(AGuestMayBeTheThreadThatCalls) {
  // Some pools run a task at once, on the thread that submits it.
  int called = 0;
  const auto at_once = [&](void (*call)(void*), void* argument) {
    ++called;
    call(argument);
    return true;
  };
  RandomModel model(9, 4, ThreadPool::OfGuests({3, at_once}));
  for (int run = 0; run < kRuns; ++run) model.Check(run);
  CHECK(called > 0);
  for (const tvm_interop::OpTiming& timing : model.executor().Profile()) {
    CHECK_EQ(timing.thread, 0);
  }
}

TEST_CASE(NoMoreGuestsThanAskedFor) {
  ProgramPool program(6);
  std::atomic<int> working{0}, most{0};
  struct Counting : Kernel {
    void Run() override {
      const int now = working->fetch_add(1) + 1;
      int seen = most->load();
      while (seen < now && !most->compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      working->fetch_sub(1);
    }
    std::atomic<int>* working;
    std::atomic<int>* most;
  };
  std::vector<Counting> kernels(48);
  std::vector<PlannedOp> ops;
  for (int i = 0; i < 48; ++i) {
    kernels[i].working = &working;
    kernels[i].most = &most;
    ops.push_back({"op", &kernels[i], i % 6, {}});
  }
  CpuExecutor executor(6, 1, ops, program.Guests(2));
  for (int run = 0; run < 10; ++run) executor.Run();
  CHECK(most.load() <= 3);
  CHECK(most.load() > 1);
}

TEST_CASE(LoopsOfOperatorsRunOnGuests) {
  ProgramPool program(3);
  struct LoopKernel : Kernel {
    void Run() override {
      std::vector<std::thread::id> ran_on(16);
      RunParallelLoop(
          [](int task, int, void* data) {
            (*static_cast<std::vector<std::thread::id>*>(data))[task] = std::this_thread::get_id();
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            return 0;
          },
          &ran_on, static_cast<int>(ran_on.size()));
      threads.insert(ran_on.begin(), ran_on.end());
    }
    std::set<std::thread::id> threads;
  } kernel;
  CpuExecutor executor(1, 4, {{"op", &kernel, 0, {}}}, program.Guests(3));
  for (int run = 0; run < 20 && kernel.threads.size() < 2; ++run) executor.Run();
  CHECK(kernel.threads.size() > 1);
  CHECK_EQ(ThreadPool::Get().num_helpers(), 0);
}

TEST_CASE(AProgramsThreadIsLeftAsItWas) {
  // A run must not change the affinity and the floating-point mode of the program's threads.
  ProgramPool program(1);
  struct State {
    cpu_set_t cpus;
    FloatMode mode;
    bool is_there = false;
  };
  const auto note = [](void* argument) {
    auto* const state = static_cast<State*>(argument);
    sched_getaffinity(0, sizeof(state->cpus), &state->cpus);
    state->mode = FloatMode::OfThisThread();
    state->is_there = true;
  };
  State before, after;
  std::vector<Placed> kernels(24);
  const FloatMode ours = FloatMode::OfThisThread();
#if defined(__x86_64__)
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040u);  // Denormals count as zero for the caller.
#endif
  program.Submit({note, &before});
  {
    CpuExecutor executor(3, 1, OnStreams(&kernels, 3), program.Guests(1));
    for (int run = 0; run < 20; ++run) executor.Run();
    CHECK_EQ(ThreadsOf(kernels).size(), size_t{2});
  }
  // The pool has one thread, so all earlier tasks have ended when this task ends.
  std::atomic<bool> is_noted{false};
  program.Submit({note, &after});
  program.Submit(
      {[](void* argument) { static_cast<std::atomic<bool>*>(argument)->store(true); }, &is_noted});
  while (!is_noted.load()) std::this_thread::yield();
  ours.Apply();
  CHECK(before.is_there && after.is_there);
  CHECK(CPU_EQUAL(&before.cpus, &after.cpus));
  CHECK(std::memcmp(&before.mode, &after.mode, sizeof(FloatMode)) == 0);
}

TEST_CASE(AForkedChildDoesNotUseThePool) {
#if !defined(__SANITIZE_THREAD__)
  ProgramPool program(2);
  std::atomic<int> submitted{0};
  const std::shared_ptr<ThreadPool> guests =
      ThreadPool::OfGuests({2, [&](void (*call)(void*), void* argument) {
                              submitted.fetch_add(1);
                              program.Submit({call, argument});
                              return true;
                            }});
  auto model = std::make_unique<RandomModel>(7, 3, guests);
  model->Check(1);
  CHECK(submitted.load() > 0);
  const pid_t child = fork();
  if (child == 0) {
    const int before = submitted.load();
    for (int run = 0; run < 20; ++run) model->Check(run);
    model.reset();
    _exit(submitted.load() == before ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  model->Check(2);
#endif
}

}  // namespace
