#include "runtime/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/cpu/affinity.h"
#include "runtime/cpu/blocked_signals.h"
#include "runtime/cpu/float_mode.h"
#include "runtime/cpu/preemption_point.h"
#include "runtime/cpu/spinning.h"
#include "runtime/cpu/topology.h"

namespace tvm_interop {
namespace {

std::atomic<ThreadPool*> pool_of_process{nullptr};
// Held while a pool is made. Before a fork, the forking thread locks this mutex too. Otherwise a
// child could begin with a mutex that another thread of its parent has locked.
std::mutex& MakingPool() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::atomic<int> fork_generation{0};

// The shortest time between two wake-ups of helpers for a job. Each costs the caller microseconds.
constexpr int64_t kCallEveryNs = 30'000;

int NumThreadsByDefault() {
  const char* text = std::getenv("TVM_INTEROP_NUM_THREADS");
  if (text == nullptr || *text == '\0') return AllowedCores();
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*end != '\0' || number < 1 || number > 4096) {
    throw std::runtime_error("the environment variable TVM_INTEROP_NUM_THREADS is `" +
                             std::string(text) + "`; it must be a number of threads, 1 to 4096");
  }
  return static_cast<int>(number);
}

// The CPU of the latest caller, which is a thread that runs a model. -1 before the first caller.
std::atomic<int> callers_cpu{-1};

thread_local Job::Helper* this_helper = nullptr;
// The pool in which the calling thread runs a model. Null means the pool of the process.
thread_local ThreadPool* current_pool = nullptr;

// Keeps a helper away from the CPU of the caller that will wake it. The helper is the calling
// thread, and is about to sleep. On a virtual machine, the system treats a sleeping CPU like a CPU
// that the host has taken away. So the system would put the woken helper on the caller's CPU, and
// the helper would have to wait for the caller.
class Avoidance {
 public:
  explicit Avoidance(Affinity* affinity) : affinity_(affinity) {}

  void Update() {
    // A caller that moves to another core changes this helper's mask, to keep the helper off the
    // new core. If this happens just before the call of `KeepOff` below, the call overwrites the
    // new mask. So the loop reads the caller's core again.
    for (int cpu = callers_cpu.load(); cpu != avoided_; cpu = callers_cpu.load()) {
      avoided_ = cpu;
      affinity_->KeepOff(cpu);
    }
  }

 private:
  Affinity* const affinity_;
  int avoided_ = -1;
};

// How many nested runs the calling thread is inside. Only the outermost run counts the thread as a
// caller. For a helper the number starts at 1, so no run counts a helper as a caller.
thread_local int runs_inside = 0;

}  // namespace

int ForkGeneration() { return fork_generation.load(std::memory_order_relaxed); }

struct Job::Helper {
  std::thread thread;
  // The job whose functions the helper may be running. A job is destroyed only when no helper's
  // `visits` names it.
  std::atomic<const Job*> visits{nullptr};
  std::atomic<bool> ends{false};
  // Whether another thread has lent its core to the helper, so that its operator can end.
  std::atomic<bool> has_borrowed{false};
  // The helper writes the next three fields before it sets `is_there` and before it visits a job.
  pid_t id = 0;
  clockid_t on_core_clock{};
  Affinity affinity;
  std::atomic<bool> is_there{false};
  // For a guest (a thread of the program's own pool): whether a thread has taken this place of a
  // helper. `is_there` stays false, so nobody looks at a guest's clock or affinity.
  std::atomic<bool> is_taken{false};
};

namespace {

// Finds out whether a helper that others wait for has lost its core. While a helper has no core,
// its CPU time does not grow.
class LossOfCore {
 public:
  // The caller calls this repeatedly while it waits. Every `kLooks` calls, it reads the CPU time of
  // the helper that works on `job`. Returns the helper if its CPU time has not changed since the
  // last reading, and null otherwise.
  Job::Helper* Look(const Job& job) {
    if (++looks_ % kLooks != 0) return nullptr;
    Job::Helper* const helper = job.HelperAtWork();
    // Only because this load of `is_there` is an acquire, the caller sees the helper's fields.
    if (helper == nullptr || !helper->is_there.load(std::memory_order_acquire)) return nullptr;
    const int64_t on_core_ns = OnCoreNs(helper->on_core_clock);
    if (on_core_ns < 0) return nullptr;
    const bool stands_still = helper == seen_ && on_core_ns == on_core_ns_;
    seen_ = helper;
    on_core_ns_ = on_core_ns;
    return stands_still ? helper : nullptr;
  }

 private:
  static constexpr int kLooks = 256;  // `kLooks` calls take about ten microseconds.

  int looks_ = 0;
  Job::Helper* seen_ = nullptr;
  int64_t on_core_ns_ = 0;
};

}  // namespace

Job::Helper* Job::ThisHelper() noexcept { return this_helper; }

bool Job::HasBorrowedItsCore() noexcept {
  return this_helper != nullptr && this_helper->has_borrowed.load(std::memory_order_relaxed);
}

void Job::Announce(int helpers) noexcept {
  owner_.Wake(1);
  if (helpers <= 0 || !pool_->CanWakeHelpers()) return;
  const int64_t now_ns = NowNs();
  if (now_ns - helpers_called_ns_.load(std::memory_order_relaxed) < kCallEveryNs) return;
  helpers_called_ns_.store(now_ns, std::memory_order_relaxed);
  pool_->WakeHelpers(helpers);
}

ThreadPool& ThreadPool::Get() {
  ThreadPool* pool = pool_of_process.load(std::memory_order_acquire);
  return pool != nullptr ? *pool : *MakeForThisProcess();
}

ThreadPool* ThreadPool::IfThere() { return pool_of_process.load(std::memory_order_acquire); }

ThreadPool* ThreadPool::MakeForThisProcess() {
  std::mutex& making = MakingPool();
  const std::lock_guard<std::mutex> lock(making);
  ThreadPool* pool = pool_of_process.load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  // A forked child has none of its parent's threads. It leaves the parent's pool and the pool's
  // locks as they are. It makes a new pool when it first needs a pool.
  static const int registered =
      pthread_atfork([] { MakingPool().lock(); }, [] { MakingPool().unlock(); },
                     [] {
                       pool_of_process.store(nullptr, std::memory_order_relaxed);
                       fork_generation.fetch_add(1, std::memory_order_relaxed);
                       runs_inside = 0;
                       current_pool = nullptr;
                       MakingPool().unlock();
                     });
  (void)registered;
  pool = new ThreadPool(
      NumThreadsByDefault());  // Never deleted: threads may work until the process ends.
  pool_of_process.store(pool, std::memory_order_release);
  return pool;
}

std::shared_ptr<ThreadPool> ThreadPool::OfGuests(GuestThreads guests) {
  Get();  // The pool of the process counts the forks.
  const std::shared_ptr<ThreadPool> pool(new ThreadPool(guests.number + 1));
  for (int i = 0; i < guests.number; ++i) pool->helpers_.push_back(std::make_unique<Helper>());
  pool->num_helpers_.store(guests.number, std::memory_order_relaxed);
  pool->guests_ = std::move(guests);
  return pool;
}

ThreadPool& ThreadPool::Current() { return current_pool != nullptr ? *current_pool : Get(); }

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), fork_generation_(ForkGeneration()) {}

bool ThreadPool::IsHere() const { return fork_generation_ == ForkGeneration(); }

void ThreadPool::SetNumThreads(int num_threads) {
  if (num_threads < 1) {
    throw std::runtime_error("a number of threads must be positive, got " +
                             std::to_string(num_threads));
  }
  std::vector<Helper*> ending;
  {
    const std::lock_guard<std::mutex> lock(starting_);
    num_threads_.store(num_threads, std::memory_order_relaxed);
    while (helpers_.size() > static_cast<size_t>(num_threads - 1)) {
      helpers_.back()->ends.store(true, std::memory_order_seq_cst);
      ending.push_back(helpers_.back().get());
      ended_.push_back(std::move(helpers_.back()));
      helpers_.pop_back();
    }
    num_helpers_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
    parked_.Wake(static_cast<int>(helpers_.size() + ending.size()));
  }
  // Do not hold the mutex here: a helper may need it to end its last piece of work.
  for (Helper* helper : ending) helper->thread.join();
}

void ThreadPool::Start(int helpers) {
  if (num_helpers() >= std::min(helpers, num_threads() - 1)) return;
  const std::lock_guard<std::mutex> lock(starting_);
  const int wanted = std::min(helpers, num_threads() - 1);
  if (helpers_.empty() && witness_ == 0 && !pins()) witness_ = StartWitness();
  const BlockedSignals blocked(kSignalsOfComputing);
  while (static_cast<int>(helpers_.size()) < wanted) {
    const int number = static_cast<int>(helpers_.size()) + 1;
    auto helper = std::make_unique<Helper>();
    try {
      helper->thread = std::thread(&ThreadPool::RunHelper, this, helper.get(), number);
    } catch (const std::system_error& error) {
      throw std::runtime_error(
          "thread " + std::to_string(number + 1) + " of " + std::to_string(num_threads()) +
          " cannot be started: " + error.what() +
          "; raise the limit on threads (`ulimit -u`, or the container's), or ask for fewer with "
          "tvm_interop.set_num_threads or TVM_INTEROP_NUM_THREADS");
    }
    helpers_.push_back(std::move(helper));
    num_helpers_.store(number, std::memory_order_relaxed);
  }
}

ThreadPool::CallerCount::CallerCount(ThreadPool* pool)
    : pool_(runs_inside++ > 0 ? nullptr : pool), current_before_(current_pool) {
  current_pool = pool;
  if (pool_ != nullptr) pool_->callers_.fetch_add(1, std::memory_order_relaxed);
}

ThreadPool::CallerCount::~CallerCount() {
  --runs_inside;
  current_pool = current_before_;
  if (pool_ == nullptr) return;
  // The calling thread is no longer a caller, so other callers may use one more helper: wake one.
  if (pool_->callers_.fetch_sub(1, std::memory_order_relaxed) > 1) pool_->WakeHelpers(1);
}

void ThreadPool::Run(Job* job, int helpers) {
  const CallerCount counted(this);
  std::optional<Confined> pinned;
  if (pins() && runs_inside == 1) pinned.emplace(AllowedCpus().front());
  // Write `pool_` only if it must change, because a late helper may read it at the same time.
  if (job->pool_ != this) job->pool_ = this;
  if (this_helper == nullptr) KeepHelpersOffThisCore();
  std::atomic<Job*>* const slot = Enlist(job);
  job->Announce(helpers);
  WaitFor(job);
  if (slot != nullptr) slot->store(nullptr, std::memory_order_release);
}

void ThreadPool::KeepHelpersOffThisCore() {
  const int cpu = sched_getcpu();
  // Write `callers_cpu` only if it must change, which is rare.
  if (HasGuests() || pins() || callers_cpu.load(std::memory_order_relaxed) == cpu) return;
  if (callers_cpu.exchange(cpu) == cpu || callers_.load() != 1) return;
  const std::unique_lock<std::mutex> lock(starting_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const std::unique_ptr<Helper>& helper : helpers_) {
    if (!helper->is_there.load(std::memory_order_acquire)) continue;
    if (helper->has_borrowed.load(std::memory_order_relaxed)) continue;
    helper->affinity.KeepOff(cpu);
  }
}

std::atomic<Job*>* ThreadPool::Enlist(Job* job) {
  for (int i = 0; i < kMaxJobs; ++i) {
    std::atomic<Job*>& slot = jobs_[i];
    Job* none = nullptr;
    if (slot.load(std::memory_order_relaxed) != nullptr) continue;
    // Each slot can hold one job. The number of slots grows before the job is stored. If a helper
    // looks at this moment, it finds an empty slot, which does no harm.
    int slots = num_slots_.load(std::memory_order_relaxed);
    while (slots <= i &&
           !num_slots_.compare_exchange_weak(slots, i + 1, std::memory_order_seq_cst)) {
    }
    if (slot.compare_exchange_strong(none, job, std::memory_order_seq_cst)) return &slot;
  }
  return nullptr;
}

void ThreadPool::WaitFor(Job* job) {
  Spinning spinning;
  LossOfCore loss;
  while (!job->HasEnded()) {
    if (job->Help(0)) {
      spinning.Reset();
    } else if (Helper* const helper = pins() ? nullptr : loss.Look(*job)) {
      LendThisCore(helper, job);
      spinning.Reset();
    } else if (!spinning.GoesOn(true)) {
      KeepHelpersOffThisCore();
      const uint64_t announced = job->owner_.Announce();
      if (job->Help(0) || job->HasEnded()) {
        job->owner_.Leave();
      } else {
        // While this thread sleeps, it is confined to its own core. A helper will wake it. Without
        // the confinement, the system could then move it to the helper's core, where it would wait
        // for milliseconds until the helper leaves the core.
        const Confined stays(HasGuests() || pins() ? -1 : sched_getcpu());
        job->owner_.Sleep(announced);
      }
      spinning.Reset();
    }
  }
}

void ThreadPool::LendThisCore(Helper* helper, Job* job) {
  helper->has_borrowed.store(true, std::memory_order_relaxed);
  if (!MoveOn(helper, sched_getcpu())) {
    helper->has_borrowed.store(false, std::memory_order_relaxed);
    return;
  }
  const uint64_t announced = job->owner_.Announce();
  if (job->Help(0) || job->HasEnded()) {
    job->owner_.Leave();
  } else {
    job->owner_.Sleep(announced);
  }
  // The helper has now ended its operator and has taken no new work. It sleeps or will sleep soon,
  // and must not share a core with the calling thread. The system may have moved the calling thread
  // to a new core, because the helper was on its old core.
  const int now_on = sched_getcpu();
  MoveOff(helper, now_on);
  helper->has_borrowed.store(false, std::memory_order_relaxed);
  callers_cpu.store(now_on, std::memory_order_relaxed);
}

// Confines the helper to `cpu`. Returns false if the helper is ending or cannot be confined. The
// mutex keeps the helper's thread from ending during the call.
bool ThreadPool::MoveOn(Helper* helper, int cpu) {
  const std::lock_guard<std::mutex> lock(starting_);
  return !helper->ends.load(std::memory_order_relaxed) && helper->affinity.KeepOn(cpu);
}

void ThreadPool::MoveOff(Helper* helper, int cpu) {
  const std::lock_guard<std::mutex> lock(starting_);
  if (!helper->ends.load(std::memory_order_relaxed)) helper->affinity.KeepOff(cpu);
}

void ThreadPool::WaitUntilLeft(const Job* job) {
  const std::lock_guard<std::mutex> lock(starting_);
  for (const auto* helpers : {&helpers_, &ended_}) {  // A helper in `ended_` may still be at work.
    for (const std::unique_ptr<Helper>& helper : *helpers) {
      while (helper->visits.load(std::memory_order_seq_cst) == job) std::this_thread::yield();
    }
  }
}

void ThreadPool::RunHelper(Helper* helper, int number) {
  runs_inside = 1;  // `awake_` counts helpers, so no loop may count this thread as a caller.
  if (pins()) {
    const std::vector<int> cpus = AllowedCpus();
    PinThisThread({cpus[static_cast<size_t>(number) % cpus.size()]});
  }
  this_helper = helper;
  helper->id = static_cast<pid_t>(syscall(SYS_gettid));
  pthread_getcpuclockid(pthread_self(), &helper->on_core_clock);
  helper->affinity.Adopt(witness_);
  helper->is_there.store(true, std::memory_order_release);
  Avoidance avoidance(&helper->affinity);
  if (!pins()) avoidance.Update();
  awake_.fetch_add(1, std::memory_order_relaxed);
  Spinning spinning;
  while (!helper->ends.load(std::memory_order_relaxed)) {
    if (HelpAny(helper, number)) {
      spinning.Reset();
      continue;
    }
    const bool runs = callers_.load(std::memory_order_relaxed) > 0;
    if (!IsCrowded() && !helper->has_borrowed.load(std::memory_order_relaxed) &&
        spinning.GoesOn(runs))
      continue;
    spinning.Reset();
    if (!pins()) avoidance.Update();
    const uint64_t announced = parked_.Announce();
    if (helper->ends.load(std::memory_order_seq_cst) || HelpAny(helper, number)) {
      parked_.Leave();
      continue;
    }
    // The helper counts as awake until here. Its last look may find work, and a thread that works
    // must be counted.
    awake_.fetch_sub(1, std::memory_order_relaxed);
    parked_.Sleep(announced);
    awake_.fetch_add(1, std::memory_order_relaxed);
  }
  awake_.fetch_sub(1, std::memory_order_relaxed);
}

bool ThreadPool::IsCrowded() const {
  return callers_.load(std::memory_order_relaxed) + awake_.load(std::memory_order_relaxed) >
         num_threads();
}

bool ThreadPool::HelpAny(Helper* helper, int number) {
  bool helped = false;
  if (helper->has_borrowed.load(std::memory_order_relaxed)) return false;
  const int slots = num_slots_.load(std::memory_order_seq_cst);
  for (int i = 0; i < slots && !IsCrowded(); ++i) {
    std::atomic<Job*>& slot = jobs_[i];
    Job* const job = slot.load(std::memory_order_acquire);
    if (job == nullptr) continue;
    PreemptionPoint();
    // `WaitUntilLeft` waits for this helper only if it sees the job in `visits`. So the helper
    // stores `visits` first, and then checks that the job is still listed.
    helper->visits.store(job, std::memory_order_seq_cst);
    PreemptionPoint();
    if (slot.load(std::memory_order_seq_cst) == job) helped = job->Help(number) || helped;
    helper->visits.store(nullptr, std::memory_order_release);
  }
  return helped;
}

void ThreadPool::WakeHelpers(int helpers) {
  if (HasGuests()) {
    InviteGuests(helpers);
  } else {
    parked_.Wake(helpers);
  }
}

bool ThreadPool::CanWakeHelpers() const {
  if (HasGuests()) return invited_.load(std::memory_order_relaxed) < guests_.number;
  return !parked_.IsEmpty();
}

void ThreadPool::InviteGuests(int guests) {
  for (int i = 0; i < guests; ++i) {
    const bool is_full = invited_.fetch_add(1, std::memory_order_relaxed) >= guests_.number;
    // There is not enough memory to call a guest. The run continues without the guest.
    auto* const pool =
        is_full ? nullptr : new (std::nothrow) std::shared_ptr<ThreadPool>(shared_from_this());
    if (pool != nullptr && guests_.submit(&ReceiveGuest, pool)) continue;
    delete pool;
    invited_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

void ThreadPool::ReceiveGuest(void* argument) noexcept {
  const std::unique_ptr<std::shared_ptr<ThreadPool>> invitation(
      static_cast<std::shared_ptr<ThreadPool>*>(argument));
  ThreadPool& pool = **invitation;
  if (!pool.IsHere()) return;  // A forked child, where the pool is not used.
  // A thread of the program's pool comes here to help with a run. But some pools run a task on the
  // thread that submits it. Then this thread is itself inside a run, so it must not help.
  for (size_t i = 0; i < pool.helpers_.size() && runs_inside == 0; ++i) {
    Helper* const place = pool.helpers_[i].get();
    if (place->is_taken.exchange(true, std::memory_order_relaxed)) continue;
    pool.RunGuest(place, static_cast<int>(i) + 1);
    place->is_taken.store(false, std::memory_order_relaxed);
    break;
  }
  pool.invited_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::RunGuest(Helper* helper, int number) {
  const FloatMode float_mode = FloatMode::OfThisThread();
  runs_inside = 1;  // `awake_` counts this thread, as in `RunHelper`.
  this_helper = helper;
  current_pool = this;
  awake_.fetch_add(1, std::memory_order_relaxed);
  Spinning spinning;
  while (callers_.load(std::memory_order_relaxed) > 0) {
    if (HelpAny(helper, number)) {
      spinning.Reset();
    } else if (IsCrowded() || !spinning.GoesOn(true)) {
      break;
    }
  }
  awake_.fetch_sub(1, std::memory_order_relaxed);
  current_pool = nullptr;
  this_helper = nullptr;
  runs_inside = 0;
  float_mode.Apply();
}

}  // namespace tvm_interop
