#ifndef RUNTIME_CPU_STREAM_RUN_H_
#define RUNTIME_CPU_STREAM_RUN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cpu/float_mode.h"
#include "runtime/cpu/thread_pool.h"

namespace tvm_interop {

// The interface through which a run executes its operators.
class OperatorWork {
 public:
  virtual ~OperatorWork() = default;
  // Runs operator `op` on the calling thread. The calling thread has the number `thread`. Must not
  // throw.
  virtual void RunOperator(int op, int thread) noexcept = 0;
};

// Runs operators on streams that any thread may serve.
//
// A stream is a queue of operators. They run in their order, one at a time. Each operator starts
// once the operators of other streams that it waits for have ended. Any thread may run the next
// operator of a stream. A thread owns a stream while it runs the stream's operators, and gives the
// stream back when the next operator has to wait. A thread never waits while it owns a stream. So a
// thread that loses its core delays only its current operator and the operators that depend on this
// operator.
//
// docs/threads.md explains why each operator sees what the operators before it wrote, whichever
// threads run them.
class StreamRun : public Job {
 public:
  struct Op {
    int stream = 0;
    std::vector<int> waits;  // The earlier operators on other streams that must end first.
  };

  // `work` must outlive this object.
  StreamRun(int num_streams, const std::vector<Op>& ops, OperatorWork* work);

  // Runs every operator once. Only one run may be active at a time. `pool` is the pool whose
  // helpers may join.
  void Run(ThreadPool* pool);

  bool Help(int thread) noexcept override;
  bool HasEnded() const noexcept override;
  Helper* HelperAtWork() const noexcept override;

  // The number of operators that other streams wait for.
  int num_signals() const { return num_signals_; }

 private:
  // The state of a stream in one word, so that one compare-and-swap claims the stream. The word
  // holds the number of the run, the number of the stream's operators that have ended in this run,
  // and whether a thread owns the stream. A late thread may still know only the state of the last
  // run. Because of the run's number, this thread cannot claim a stream of the next run.
  class Word {
   public:
    Word(uint32_t run, uint32_t ended, bool owned)
        : bits_(uint64_t{run} << 32 | uint64_t{ended} << 1 | (owned ? 1 : 0)) {}
    explicit Word(uint64_t bits) : bits_(bits) {}
    uint64_t bits() const { return bits_; }
    uint32_t run() const { return static_cast<uint32_t>(bits_ >> 32); }
    uint32_t ended() const { return static_cast<uint32_t>(bits_) >> 1; }
    bool is_owned() const { return (bits_ & 1) != 0; }

   private:
    uint64_t bits_;
  };

  // A point in the order of a stream: the first `ended` operators of the stream have ended.
  struct Point {
    uint32_t stream;
    uint32_t ended;
  };
  struct Step {
    int op;
    uint32_t waits_begin;
    uint32_t waits_end;
    uint32_t waiters;  // The number of operators on other streams that wait for this one.
  };
  // A stream has its own cache lines, because waiting threads read `word` all the time.
  struct alignas(64) Stream {
    std::atomic<uint64_t> word{0};
    // The helper that owned the stream last, or null if the caller owned it last. The value may be
    // out of date.
    std::atomic<Helper*> owner{nullptr};
    std::vector<Step> steps;
    std::vector<Point> waits;

    uint32_t size() const { return static_cast<uint32_t>(steps.size()); }
  };

  bool TryToServe(Stream* stream, int thread) noexcept;
  void Serve(Stream* stream, Word claimed, int thread) noexcept;
  bool IsReady(const Stream& stream, uint32_t position, uint32_t run) const noexcept;

  OperatorWork* work_;
  std::vector<Stream> streams_;
  int num_signals_ = 0;
  uint32_t run_ = 0;
  FloatMode float_mode_;  // The caller's floating-point mode, set before the streams are opened.
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_STREAM_RUN_H_
