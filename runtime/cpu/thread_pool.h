#ifndef RUNTIME_CPU_THREAD_POOL_H_
#define RUNTIME_CPU_THREAD_POOL_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/cpu/parking.h"

namespace tvm_interop {

// Work that several threads may do together, each taking what nobody is at: a run of a model on
// several streams, or one parallel loop.
class Job {
 public:
  // A thread of the pool.
  struct Helper;

  virtual ~Job() = default;

  // Does some of the work that can be done now and that nobody is at; false where there is none.
  // Any number of threads may be inside, also after the job has ended and before it begins again.
  // `thread` is 0 for the thread that the job belongs to, and a helper's number otherwise.
  virtual bool Help(int thread) noexcept = 0;

  // Whether all of it is done. What was done is visible to whoever is told so.
  virtual bool HasEnded() const noexcept = 0;

  // A helper that is at some of the work now; null where none is.
  virtual Helper* HelperAtWork() const noexcept { return nullptr; }

 protected:
  // The helper that the calling thread is; null where it is none.
  static Helper* ThisHelper() noexcept;
  // Whether the calling thread should give back what it can, since it has its core on loan.
  static bool HasBorrowedItsCore() noexcept;

  // To be called whenever there is more that can be done, or all is done. `helpers` is how many
  // threads could use the news besides the one that calls and the one that the job belongs to.
  void Announce(int helpers) noexcept;

 private:
  friend class ThreadPool;
  Parking owner_;  // Where the thread sleeps that the job belongs to.
  class ThreadPool* pool_ = nullptr;
  std::atomic<int64_t> helpers_called_ns_{0};
};

// The threads of this process that help the threads that run models.
//
// A thread that runs a model does the work itself; the pool's threads take what it has not come to
// yet. So a run ends also where no helper ever gets a core, and a helper that loses its core holds
// up no more than the one piece of work it is at. Threads that work, callers and helpers, are never
// more than `num_threads`: a second model that runs at the same time takes the place of a helper.
//
// Where a helper has lost its core in the middle of an operator, and the caller has nothing left to
// do but to wait for it, the caller lends it the core that it is on itself: the system would let
// them wait for many milliseconds, one for the other and the other for a core.
class ThreadPool {
 public:
  // The pool of this process; a forked child gets a new one.
  static ThreadPool& Get();
  // The pool of this process, or null where none has been made yet.
  static ThreadPool* IfThere();

  // How many threads work at most, those that call among them. By default the environment variable
  // TVM_INTEROP_NUM_THREADS, or else the cores that this process may use.
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }
  // Throws std::runtime_error where `num_threads` is not positive. Helpers beyond it end.
  void SetNumThreads(int num_threads);

  // Pins helper i to core i and each caller, while it runs, to core 0: for a machine that runs
  // nothing else. Concerns helpers that start from now on: call it before the first run.
  void SetPinning(bool pins) { pins_.store(pins, std::memory_order_relaxed); }
  bool pins() const { return pins_.load(std::memory_order_relaxed); }

  // Sees that up to `helpers` helpers are there, as far as `num_threads` allows. Throws
  // std::runtime_error where the system refuses a thread.
  void Start(int helpers);
  int num_helpers() const { return num_helpers_.load(std::memory_order_relaxed); }

  // Does the job: the calling thread until nothing is left, and up to `helpers` more.
  void Run(Job* job, int helpers);

  // Waits until no helper looks at `job` any more. Before a job that has ended is destroyed.
  void WaitUntilLeft(const Job* job);

  // A thread that runs a model by itself counts as one of those that work.
  class CallerCount {
   public:
    explicit CallerCount(ThreadPool* pool);
    ~CallerCount();
    CallerCount(const CallerCount&) = delete;
    CallerCount& operator=(const CallerCount&) = delete;

   private:
    ThreadPool* pool_;
  };

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  friend class Job;
  using Helper = Job::Helper;
  // Jobs beyond that many at once get no helpers.
  static constexpr int kMaxJobs = 64;

  ThreadPool();
  static ThreadPool* MakeForThisProcess();
  std::atomic<Job*>* Enlist(Job* job);
  // Where the calling thread was moved to another core: helpers must not share that with it.
  void KeepHelpersOffThisCore();
  void WaitFor(Job* job);
  void LendThisCore(Helper* helper, Job* job);
  bool MoveOn(Helper* helper, int cpu);
  void MoveOff(Helper* helper, int cpu);
  void RunHelper(Helper* helper, int number);
  bool HelpAny(Helper* helper, int number);
  bool IsCrowded() const;
  void WakeHelpers(int helpers);

  std::atomic<int> num_threads_;
  std::atomic<bool> pins_{false};
  std::mutex starting_;  // Guards the three below; never taken while a job runs.
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::vector<std::unique_ptr<Helper>> ended_;
  std::atomic<int> num_helpers_{0};
  pid_t witness_ = 0;  // See `StartWitness`; from the first helper on.

  std::array<std::atomic<Job*>, kMaxJobs> jobs_{};
  std::atomic<int> num_slots_{0};  // Slots that ever had a job are the first ones.
  std::atomic<int> callers_{0};
  std::atomic<int> awake_{0};  // Helpers that are not asleep.
  Parking parked_;
};

// Counts the forks that this process is the child of, since it first used the pool.
int ForkGeneration();

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_THREAD_POOL_H_
