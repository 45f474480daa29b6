// Tests which cores the threads of the pool run on, and what a thread does if it loses its core.

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cpu/affinity.h"
#include "runtime/cpu/executor.h"
#include "runtime/cpu/parking.h"
#include "runtime/cpu/spinning.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/cpu/topology.h"
#include "tests/cpp/check.h"

using tvm_interop::AllowedCpus;
using tvm_interop::CpuExecutor;
using tvm_interop::Kernel;
using tvm_interop::PinThisThread;
using tvm_interop::ThreadPool;

namespace {

// Returns how many times a thread looks for work before it gives up.
int LooksInVain() {
  tvm_interop::Spinning spinning;
  int looks = 0;
  while (spinning.GoesOn(true)) ++looks;
  return looks;
}

long CoresLost() {
  rusage usage;
  CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nivcsw;
}

// Shares this thread's core with another thread until this thread has lost the core once.
void LoseTheCore() {
  const std::vector<int> before = tvm_interop::AllowedCpus();
  tvm_interop::PinThisThread({before[0]});
  std::atomic<bool> enough{false};
  std::thread other([&] {
    tvm_interop::PinThisThread({before[0]});
    while (!enough.load()) tvm_interop::Relax();
  });
  const long lost = CoresLost();
  while (CoresLost() == lost) tvm_interop::Relax();
  enough.store(true);
  other.join();
  tvm_interop::PinThisThread(before);
}

TEST_CASE(ACoreLostBetweenTwoRunsSaysNothingOfNow) {
  int long_ago = 0, just_now = 1 << 30;
  // Other programs may take the core at any time. So the test makes many tries, and compares the
  // largest count of one case with the smallest count of the other case.
  for (int attempt = 0; attempt < 100 && long_ago <= 5 * static_cast<int64_t>(just_now);
       ++attempt) {
    LoseTheCore();
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    long_ago = std::max(long_ago, LooksInVain());
    LoseTheCore();
    just_now = std::min(just_now, LooksInVain());
  }
  CHECK(long_ago > 5 * static_cast<int64_t>(just_now));
}

// A thread that often takes the core of the thread that made the `BriefNeighbour`. Like threads of
// the system, the neighbour keeps the core for microseconds only.
class BriefNeighbour {
 public:
  BriefNeighbour() : before_(tvm_interop::AllowedCpus()) {
    tvm_interop::PinThisThread({before_[0]});
    neighbour_ = std::thread([this] {
      tvm_interop::PinThisThread({before_[0]});
      while (!ends_.load()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  }
  ~BriefNeighbour() {
    ends_.store(true);
    neighbour_.join();
    tvm_interop::PinThisThread(before_);
  }
  // Waits until the neighbour has taken the core once more.
  void AwaitALoss() const {
    const long lost = CoresLost();
    while (CoresLost() == lost) tvm_interop::Relax();
  }

 private:
  const std::vector<int> before_;
  std::atomic<bool> ends_{false};
  std::thread neighbour_;
};

// Whether a thread that has lost its core for some microseconds still does not treat the core as
// shared. Calls `afterwards` between the loss and the check.
bool KeepsACoreLostBriefly(const std::function<void()>& afterwards) {
  int own = 0, shared = 1 << 30;
  // Other programs may take the core at any time. So the test makes many tries, and compares the
  // largest count of one case with the smallest count of the other case.
  for (int attempt = 0; attempt < 100; ++attempt) {
    LoseTheCore();
    shared = std::min(shared, LooksInVain());
    const BriefNeighbour neighbour;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    LooksInVain();  // From here on, losses are counted.
    neighbour.AwaitALoss();
    afterwards();
    own = std::max(own, LooksInVain());
    if (own > 5 * static_cast<int64_t>(shared)) return true;
  }
  return false;
}

TEST_CASE(ACoreLostForMicrosecondsIsNotShared) {
  CHECK(KeepsACoreLostBriefly([] {}));
}

TEST_CASE(TimeAsleepIsNotTimeWithoutTheCore) {
  CHECK(KeepsACoreLostBriefly([] {
    tvm_interop::Parking parking;
    const uint64_t announced = parking.Announce();
    std::thread waker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      parking.Wake(1);
    });
    parking.Sleep(announced);
    waker.join();
  }));
}

TEST_CASE(AThreadThatFoundNothingInARunStillLooksAfterIt) {
  // Outside of a run, a thread gives up when it has looked for work for a limited time. It reads
  // the clock at every 32nd look. The limited time must begin after the run. It is enough for
  // hundreds of looks of 10 to 60 ns each. If it began in the run, the thread would give up at the
  // first reading after the run.
  constexpr int kEnough = 100;
  int looks = 0;
  // Other programs may take the core at any time, so the test takes the best of many tries.
  for (int attempt = 0; attempt < 100 && looks < kEnough; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));  // Earlier losses are forgotten.
    tvm_interop::Spinning spinning;
    const int64_t began_ns = tvm_interop::NowNs();
    bool goes_on = true;
    // During a run a thread looks for work without a limit. So this loop lasts longer than the time
    // for which a thread looks for work outside of a run.
    while (goes_on && tvm_interop::NowNs() - began_ns < 100'000) goes_on = spinning.GoesOn(true);
    int after = 0;
    while (goes_on && (goes_on = spinning.GoesOn(false))) ++after;
    looks = std::max(looks, after);
  }
  CHECK(looks >= kEnough);
}

TEST_CASE(PinnedThreadsAreFreeAfterwards) {
  ThreadPool& pool = ThreadPool::Get();
  pool.SetNumThreads(1);
  pool.SetPinning(true);
  pool.SetNumThreads(2);
  const std::vector<int> before = tvm_interop::AllowedCpus();
  struct Place : Kernel {
    void Run() override {
      cpus = tvm_interop::AllowedCpus();
      thread = std::this_thread::get_id();
    }
    std::vector<int> cpus;
    std::thread::id thread;
  } here, there;
  CpuExecutor executor(2, 1, {{"here", &here, 0, {}}, {"there", &there, 1, {}}});
  executor.Run();
  CHECK_EQ(here.cpus.size(), size_t{1});
  CHECK_EQ(there.cpus.size(), size_t{1});
  CHECK(tvm_interop::AllowedCpus() == before);
  pool.SetNumThreads(1);
  pool.SetPinning(false);
  pool.SetNumThreads(4);
  // The affinity mask of a helper lacks the caller's core. So run the model until the caller, and
  // no helper, runs the operator `here`.
  do {
    executor.Run();
  } while (here.thread != std::this_thread::get_id());
  CHECK(here.cpus == before);
}

// Returns the CPUs that a thread may run on.
std::vector<int> CpusOf(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CHECK_EQ(sched_getaffinity(thread, sizeof(set), &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

bool Has(const std::vector<int>& cpus, int cpu) {
  return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end();
}

TEST_CASE(AMaskThatCrossedTheUsersIsTakenBack) {
  const std::vector<int> all = AllowedCpus();
  if (all.size() < 2) return;
  const pid_t witness = tvm_interop::StartWitness();
  std::thread([&] {
    tvm_interop::Affinity affinity;
    affinity.Adopt(witness);
    affinity.KeepOff(all[0]);
    const std::vector<int> narrowed = CpusOf(0);
    CHECK(!Has(narrowed, all[0]));
    // Stands for a user who confines all threads to the first core at this moment. The witness
    // already has the user's mask. The user set it on this thread too, but the call of `KeepOff`
    // above overwrote it. So the next call must set the user's mask again.
    tvm_interop::PinThread(witness, {all[0]});
    affinity.KeepOff(all[0]);
    CHECK(CpusOf(0) == std::vector<int>{all[0]});
  }).join();
}

// Spins until `happened` returns true, and returns true. Gives up after 50 ms and returns false,
// because a helper may miss a wake-up.
bool SpinUntil(const std::function<bool()>& happened) {
  const int64_t began_ns = tvm_interop::NowNs();
  while (!happened()) {
    tvm_interop::Relax();
    if (tvm_interop::NowNs() - began_ns > 50'000'000) return false;
  }
  return true;
}

// A model of two operators that begin together. So the caller runs one operator, and a helper runs
// the other operator.
class CallerAndHelper {
 public:
  CallerAndHelper(std::function<void()> callers, std::function<void()> helpers)
      : callers_(std::move(callers)),
        helpers_(std::move(helpers)),
        here_(this),
        there_(this),
        executor_(2, 1, {{"here", &here_, 0, {}}, {"there", &there_, 1, {}}}) {}

  void Run() {
    do {
      meeting_ = Meeting::kNobody;
      executor_.Run();
    } while (meeting_ != Meeting::kBoth);
  }

 private:
  enum class Meeting { kNobody, kOneWaits, kBoth, kMissed };

  struct Half : Kernel {
    explicit Half(CallerAndHelper* all) : all(all) {}
    void Run() override {
      if (!all->Meet()) return;
      (std::this_thread::get_id() == all->caller_ ? all->callers_ : all->helpers_)();
    }
    CallerAndHelper* all;
  };

  // Whether the operators of the caller and of the helper run at the same time. Each of the two
  // operators calls this function, and both get the same answer. The first operator waits for the
  // second. If it waits too long, both operators get the answer false. The second operator may then
  // run later, even on the same thread.
  bool Meet() {
    Meeting seen = Meeting::kNobody;
    if (!meeting_.compare_exchange_strong(seen, Meeting::kOneWaits)) {
      seen = Meeting::kOneWaits;
      return meeting_.compare_exchange_strong(seen, Meeting::kBoth);
    }
    SpinUntil([this] { return meeting_ == Meeting::kBoth; });
    seen = Meeting::kOneWaits;
    return !meeting_.compare_exchange_strong(seen, Meeting::kMissed);
  }

  const std::thread::id caller_ = std::this_thread::get_id();
  std::function<void()> callers_, helpers_;
  std::atomic<Meeting> meeting_{Meeting::kNobody};
  Half here_, there_;
  CpuExecutor executor_;
};

TEST_CASE(AHelperKeepsOffTheCoreThatItsCallerWasMovedTo) {
  const std::vector<int> all = AllowedCpus();
  if (all.size() < 2) return;
  ThreadPool::Get().SetNumThreads(2);
  std::vector<int> helpers;
  std::atomic<bool> looked{false};
  // The caller stays busy, because a waiting caller would lend its core to a helper without a core.
  const auto callers = [&] {
    while (!looked.load()) std::this_thread::yield();
  };
  const auto helpers_part = [&] {
    helpers = CpusOf(0);
    looked = true;
  };
  CallerAndHelper model(callers, helpers_part);
  model.Run();
  for (int move = 0; move < 20; ++move) {
    const int cpu = all[move % 2];
    PinThisThread({cpu});
    looked = false;
    model.Run();
    CHECK(!Has(helpers, cpu));
  }
  PinThisThread(all);
}

TEST_CASE(ACallerThatSleepsStaysOnItsCore) {
  const std::vector<int> all = AllowedCpus();
  if (all.size() < 2) return;
  ThreadPool::Get().SetNumThreads(2);
  const auto caller = static_cast<pid_t>(syscall(SYS_gettid));
  bool stayed = false;
  // The caller has nothing left to do. It looks for work for a while, and then sleeps.
  CallerAndHelper model([] {},
                        [&] { stayed = SpinUntil([&] { return CpusOf(caller).size() == 1; }); });
  // If the helper loses its core, the caller lends its own core instead of sleeping. This happens
  // by chance, so one of many tries must succeed.
  for (int attempt = 0; attempt < 100 && !stayed; ++attempt) model.Run();
  CHECK(stayed);
  CHECK(AllowedCpus() == all);
}

TEST_CASE(AHelperThatBorrowedACoreKeepsOffTheOneItsCallerWakesUpOn) {
  const std::vector<int> all = AllowedCpus();
  if (all.size() != 2) return;  // With more cores, the caller may wake up on a third core.
  ThreadPool::Get().SetNumThreads(2);
  const auto caller = static_cast<pid_t>(syscall(SYS_gettid));
  std::atomic<bool> moved{false};
  std::atomic<pid_t> helper{0};
  const auto borrows = [&] {
    helper = static_cast<pid_t>(syscall(SYS_gettid));
    // A helper that sleeps within an operator looks like a helper that has lost its core. So it
    // borrows the caller's core. Then the caller is moved away, as the system would move it from a
    // core that is taken.
    for (int ms = 0; ms < 20 && !moved; ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      moved = CpusOf(0) == std::vector<int>{all[0]} && tvm_interop::PinThread(caller, {all[1]});
    }
  };
  CallerAndHelper model([] {}, borrows);
  std::vector<int> helpers;
  // A caller that has lately lost its core sleeps at once and lends nothing. So try many times.
  for (int attempt = 0; attempt < 100 && !moved; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    PinThisThread({all[0]});
    model.Run();
    helpers = CpusOf(helper);
    PinThisThread(all);
  }
  CHECK(moved);
  CHECK(!Has(helpers, all[1]));
}

}  // namespace
