#ifndef RUNTIME_CPU_STREAM_RUN_H_
#define RUNTIME_CPU_STREAM_RUN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cpu/float_mode.h"
#include "runtime/cpu/thread_pool.h"

namespace tvm_interop {

// What a run does for each operator.
class OperatorWork {
 public:
  virtual ~OperatorWork() = default;
  // Runs operator `op`, on the calling thread, whose number is `thread`. Must not throw.
  virtual void RunOperator(int op, int thread) noexcept = 0;
};

// Runs of operators on streams that any thread may serve.
//
// A stream is a queue: its operators run in their order, one at a time, each once the operators of
// other streams that it waits for have ended. Which thread runs the next one is left open. A thread
// owns a stream while it runs operators of it, and gives it back where the next operator has to
// wait; it never waits while it owns one. So a thread that has lost its core holds up the one
// operator it is at, and what depends on that.
//
// Why every dependency is a happens-before, whoever runs what, is in docs/threads.md.
class StreamRun : public Job {
 public:
  struct Op {
    int stream = 0;
    std::vector<int> waits;  // Earlier operators, on other streams.
  };

  // `work` outlives this.
  StreamRun(int num_streams, const std::vector<Op>& ops, OperatorWork* work);

  // Runs every operator once. One run at a time. `pool` is the process's.
  void Run(ThreadPool* pool);

  bool Help(int thread) noexcept override;
  bool HasEnded() const noexcept override;
  Helper* HelperAtWork() const noexcept override;

  // Operators that other streams wait for.
  int num_signals() const { return num_signals_; }

 private:
  // The state of a stream in one word, so that one compare-and-swap claims it: the number of the
  // run, how many of its operators have ended in that run, and whether a thread owns it. The run is
  // part of it, or a thread that was late could take up the next run with what it knew of the last.
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

  // That many operators of a stream have ended.
  struct Point {
    uint32_t stream;
    uint32_t ended;
  };
  struct Step {
    int op;
    uint32_t waits_begin;
    uint32_t waits_end;
    uint32_t waiters;  // Operators of other streams that wait for this one.
  };
  // On cache lines of its own: threads that wait look at the word all the time.
  struct alignas(64) Stream {
    std::atomic<uint64_t> word{0};
    // The helper that owned it last; null for the thread that called. Only a hint.
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
  FloatMode float_mode_;  // Of the thread that called; written before the streams are opened.
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_STREAM_RUN_H_
