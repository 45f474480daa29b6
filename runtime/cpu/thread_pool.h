#ifndef RUNTIME_CPU_THREAD_POOL_H_
#define RUNTIME_CPU_THREAD_POOL_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/cpu/parking.h"

namespace tvm_interop {

// Work that several threads may do together: a run of a model on several streams, or one parallel
// loop. Each thread takes pieces of work that no other thread is doing.
class Job {
 public:
  // A thread of the pool, which helps with jobs.
  struct Helper;

  virtual ~Job() = default;

  // Does pieces of the work that are ready and that no other thread is doing. Returns false if
  // there are no such pieces. Any number of threads may be inside this function at once, even after
  // the job has ended and before it begins again. `thread` is 0 for the thread that the job belongs
  // to, and the helper's number for a helper.
  virtual bool Help(int thread) noexcept = 0;

  // Whether all work of the job is done. If the result is true, the calling thread sees everything
  // that the work wrote.
  virtual bool HasEnded() const noexcept = 0;

  // Returns a helper that is doing some of the work now, or null if there is none.
  virtual Helper* HelperAtWork() const noexcept { return nullptr; }

 protected:
  // Returns the calling thread's helper, or null if the calling thread is not a helper.
  static Helper* ThisHelper() noexcept;
  // Whether another thread has lent its core to the calling thread. If so, the calling thread
  // should give back the work that it has not begun.
  static bool HasBorrowedItsCore() noexcept;

  // Must be called whenever new work is ready or all work is done. `helpers` is the number of
  // threads that could use the new work, without the calling thread and the thread that the job
  // belongs to.
  void Announce(int helpers) noexcept;

 private:
  friend class ThreadPool;
  Parking owner_;  // The thread that the job belongs to sleeps here.
  class ThreadPool* pool_ = nullptr;
  std::atomic<int64_t> helpers_called_ns_{0};
};

// The threads of a program's own pool. They help in place of the threads that this library would
// start.
struct GuestThreads {
  // The largest number of threads of the program's pool that help at the same time.
  int number = 0;
  // Asks the program's pool to call `task(argument)` once on one of its threads. Returns false if
  // the pool cannot take the task; the pool must then never call the task. May be called by any
  // thread, and must not throw.
  std::function<bool(void (*task)(void*), void* argument)> submit;
};

// The threads of this process that help the threads that run models. A thread that runs a model is
// called a caller, and a thread of the pool is called a helper.
//
// A caller does the work itself, and the helpers take work that the caller has not reached yet. So
// a run ends even if no helper ever gets a core. A helper that loses its core delays only the one
// piece of work that it is doing. If there are more than `num_threads` callers and awake helpers
// together, the helpers take no further work. So if a second model runs at the same time, its
// caller takes the place of a helper.
//
// A helper may lose its core in the middle of an operator while its caller has nothing left to do
// but wait. Then the caller lends its own core to the helper. Otherwise both could wait for many
// milliseconds: the caller for the helper, and the helper for a core.
//
// There is one pool for the process. A program with threads of its own can have further pools,
// whose helpers are guests: threads of the program that come when they are called, and leave when
// no job is left. The affinity of guests and of their callers is never changed.
class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
 public:
  // Returns the pool of this process. A forked child gets a new pool.
  static ThreadPool& Get();
  // Returns the pool of this process, or null if none has been made yet.
  static ThreadPool* IfThere();
  // Makes a pool whose helpers are guests: threads of the program that come when they are called.
  static std::shared_ptr<ThreadPool> OfGuests(GuestThreads guests);
  // Returns the pool in which the calling thread is running a model, or else the pool of this
  // process.
  static ThreadPool& Current();
  // Whether the threads of this pool are in this process. False in a forked child of the process
  // that made the pool.
  bool IsHere() const;

  // The largest number of threads that work at once, callers included. By default it is the value
  // of the environment variable TVM_INTEROP_NUM_THREADS, or else the number of cores that this
  // process may use.
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }
  // Sets the largest number of threads that work at once. Helpers beyond this number end. Throws
  // std::runtime_error if `num_threads` is not positive.
  void SetNumThreads(int num_threads);

  // Pins each helper to one core: helper i to core i of `AllowedCpus`, starting again after the
  // last core. A caller is pinned to core 0 while `Run` runs its job, unless the job is a loop
  // inside a run. Use this on a machine that runs nothing else. The setting applies only to helpers
  // that start later, so call this function before the first run.
  void SetPinning(bool pins) { pins_.store(pins, std::memory_order_relaxed); }
  bool pins() const { return pins_.load(std::memory_order_relaxed); }

  // Starts helpers until there are at least `helpers` of them, or as many as `num_threads` allows.
  // Throws std::runtime_error if the system refuses to start a thread.
  void Start(int helpers);
  int num_helpers() const { return num_helpers_.load(std::memory_order_relaxed); }

  // Runs the job to its end, with the calling thread and up to `helpers` helpers.
  void Run(Job* job, int helpers);

  // Waits until no helper looks at `job` any more. Must be called before a job that has ended is
  // destroyed.
  void WaitUntilLeft(const Job* job);

  // Counts the calling thread as a caller while this object lives, and makes `pool` the pool in
  // which the thread runs a model. Nested objects count the thread once.
  class CallerCount {
   public:
    explicit CallerCount(ThreadPool* pool);
    ~CallerCount();
    CallerCount(const CallerCount&) = delete;
    CallerCount& operator=(const CallerCount&) = delete;

   private:
    ThreadPool* pool_;
    ThreadPool* current_before_;
  };

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  friend class Job;
  using Helper = Job::Helper;
  // The largest number of jobs that get helpers at the same time.
  static constexpr int kMaxJobs = 64;

  explicit ThreadPool(int num_threads);
  static ThreadPool* MakeForThisProcess();
  std::atomic<Job*>* Enlist(Job* job);
  // Moves the helpers off the calling thread's core, because a helper and its caller must not share
  // a core. Does nothing if there are other callers, or if the latest caller was on the same core.
  void KeepHelpersOffThisCore();
  void WaitFor(Job* job);
  void LendThisCore(Helper* helper, Job* job);
  bool MoveOn(Helper* helper, int cpu);
  void MoveOff(Helper* helper, int cpu);
  void RunHelper(Helper* helper, int number);
  bool HasGuests() const { return guests_.submit != nullptr; }
  // Whether one more helper could be called: a sleeping thread of this library, or a guest that has
  // not been called yet.
  bool CanWakeHelpers() const;
  void InviteGuests(int guests);
  // The task that a thread of the program's own pool runs when `InviteGuests` has called it.
  // `argument` is a `std::shared_ptr<ThreadPool>`, which this function deletes.
  static void ReceiveGuest(void* argument) noexcept;
  void RunGuest(Helper* helper, int number);
  bool HelpAny(Helper* helper, int number);
  bool IsCrowded() const;
  void WakeHelpers(int helpers);

  std::atomic<int> num_threads_;
  std::atomic<bool> pins_{false};
  GuestThreads guests_;          // Without `submit` in the pool of the process.
  int fork_generation_ = 0;      // The process that made the pool: see `ForkGeneration`.
  std::atomic<int> invited_{0};  // The number of guests that were called and have not left.
  std::mutex starting_;          // Guards the next four fields.
  std::vector<std::unique_ptr<Helper>> helpers_;
  // Helpers that have ended or will. The objects stay, because a waiting thread may read them.
  std::vector<std::unique_ptr<Helper>> ended_;
  std::atomic<int> num_helpers_{0};
  pid_t witness_ = 0;  // The result of `StartWitness`; 0 until the first helper starts.

  std::array<std::atomic<Job*>, kMaxJobs> jobs_{};
  std::atomic<int> num_slots_{0};  // Only the first `num_slots_` slots have ever held a job.
  std::atomic<int> callers_{0};
  std::atomic<int> awake_{0};  // The number of helpers that are not asleep.
  Parking parked_;
};

// Returns how many forks lie between the process that first used the pool and this process.
int ForkGeneration();

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_THREAD_POOL_H_
