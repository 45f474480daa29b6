#include "runtime/cpu/parallel_loop.h"

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/cpu/float_mode.h"
#include "runtime/cpu/preemption_point.h"
#include "runtime/cpu/thread_pool.h"

namespace tvm_interop {
namespace {

thread_local int current_team = 0;
thread_local bool inside_loop = false;

// A parallel loop. The object is reused for many loops and is never destroyed. A helper may look at
// the object, lose its core, and go on long after the loop has ended. This is safe, so a loop need
// not wait for such a helper.
class Loop : public Job {
 public:
  // Claims this object for a loop of the calling thread. Returns false if another thread has
  // claimed it.
  bool TryToTake() { return !taken_.exchange(true, std::memory_order_acquire); }
  void GiveBack() { taken_.store(false, std::memory_order_release); }

  int Run(LoopTask body, void* data, int tasks) noexcept {
    body_.store(body, std::memory_order_relaxed);
    data_.store(data, std::memory_order_relaxed);
    left_.store(tasks, std::memory_order_relaxed);
    failed_.store(-1, std::memory_order_relaxed);
    float_mode_.store(FloatMode::OfThisThread(), std::memory_order_relaxed);
    // From this store to `claims_` on, other threads can claim tasks. The store is a release, so
    // these threads see the data that the tasks read.
    claims_.store(Claims{++number_, static_cast<uint16_t>(tasks), 0}.bits(),
                  std::memory_order_release);
    ThreadPool::Current().Run(this, tasks - 1);
    const int failed = failed_.load(std::memory_order_relaxed);
    return failed < 0 ? 0 : body(failed, tasks, data);
  }

  bool Help(int thread) noexcept override {
    bool helped = false;
    uint64_t seen = claims_.load(std::memory_order_acquire);
    for (;;) {
      const Claims claims(seen);
      if (claims.next == claims.tasks) return helped;
      // `body_`, `data_` and `float_mode_` do not change before all tasks of the loop have ended.
      // So if the claim below succeeds, the values that are read here belong to the same loop as
      // the claimed task.
      const LoopTask body = body_.load(std::memory_order_relaxed);
      void* const data = data_.load(std::memory_order_relaxed);
      const FloatMode float_mode = float_mode_.load(std::memory_order_relaxed);
      PreemptionPoint();
      const Claims next{claims.number, claims.tasks, static_cast<uint16_t>(claims.next + 1)};
      if (!claims_.compare_exchange_weak(seen, next.bits(), std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
        continue;
      }
      PreemptionPoint();
      if (thread != 0) float_mode.Apply();
      inside_loop = true;
      if (body(claims.next, claims.tasks, data) != 0) {
        failed_.store(claims.next, std::memory_order_relaxed);
      }
      inside_loop = false;
      helped = true;
      PreemptionPoint();
      // The decrement of `left_` is also a release. So the thread that started the loop sees the
      // data that the task wrote.
      if (left_.fetch_sub(1, std::memory_order_seq_cst) == 1) Announce(0);
      seen = claims_.load(std::memory_order_acquire);
    }
  }

  bool HasEnded() const noexcept override { return left_.load(std::memory_order_acquire) == 0; }

 private:
  // The number of the loop, its number of tasks and the next task to claim. All three fit into one
  // word, so that one compare-and-swap claims a task, and a late thread cannot claim a task of the
  // next loop.
  struct Claims {
    Claims(uint32_t number, uint16_t tasks, uint16_t next)
        : number(number), tasks(tasks), next(next) {}
    explicit Claims(uint64_t bits)
        : number(static_cast<uint32_t>(bits >> 32)),
          tasks(static_cast<uint16_t>(bits >> 16)),
          next(static_cast<uint16_t>(bits)) {}
    uint64_t bits() const { return uint64_t{number} << 32 | uint64_t{tasks} << 16 | next; }

    uint32_t number;
    uint16_t tasks;
    uint16_t next;
  };

  std::atomic<bool> taken_{false};
  uint32_t number_ = 0;
  std::atomic<LoopTask> body_{nullptr};
  std::atomic<void*> data_{nullptr};
  std::atomic<FloatMode> float_mode_{};
  std::atomic<uint64_t> claims_{0};
  std::atomic<int> left_{0};
  std::atomic<int> failed_{-1};
};

// The number of loops that can run in parallel at the same time. Any further loop runs only on the
// thread that started it.
constexpr int kMaxLoops = 64;

Loop* TakeLoop() {
  static auto* loops = new std::array<Loop, kMaxLoops>;
  for (Loop& loop : *loops) {
    if (loop.TryToTake()) return &loop;
  }
  return nullptr;
}

int RunAlone(LoopTask body, void* data, int tasks) {
  for (int task = 0; task < tasks; ++task) {
    const int result = body(task, tasks, data);
    if (result != 0) return result;
  }
  return 0;
}

}  // namespace

int RunParallelLoop(LoopTask body, void* data, int tasks) noexcept {
  constexpr int kMostTasks = 0xffff;
  Loop* const loop = inside_loop || tasks < 2 || tasks > kMostTasks ? nullptr : TakeLoop();
  if (loop == nullptr) return RunAlone(body, data, tasks);
  const int result = loop->Run(body, data, tasks);
  loop->GiveBack();
  return result;
}

LoopTeam::LoopTeam(int threads) : before_(current_team) { current_team = threads; }
LoopTeam::~LoopTeam() { current_team = before_; }

int LoopTeam::Current() {
  return current_team > 0 ? current_team : ThreadPool::Current().num_threads();
}

}  // namespace tvm_interop
