#ifndef RUNTIME_CPU_STREAMS_H_
#define RUNTIME_CPU_STREAMS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/event.h"

namespace tvm_interop {

// What one run does on each stream.
class StreamWork {
 public:
  virtual ~StreamWork() = default;
  // Runs stream `stream`'s part of run `run`. Must not throw.
  virtual void RunStream(int stream, uint64_t run) noexcept = 0;
};

struct CpuStreamsOptions {
  int num_streams = 1;
  // Threads each stream's kernels may use, the stream's own among them. 0 leaves the kernel
  // library's own setting alone.
  int threads_per_stream = 0;
  // How long a stream that waits keeps its core busy before it parks.
  std::chrono::nanoseconds spin{50'000};
  // Sets the kernel library's team size for the calling thread; null where kernels are serial.
  void (*set_team_size)(int threads) = nullptr;
};

// CPU streams: the calling thread and `num_streams - 1` worker threads, each on cores of its own.
//
// Stream 0 is the calling thread, so one stream costs no hand-over at all and sequential execution
// is simply this with one stream. With several streams the caller is confined to stream 0's cores
// while a run lasts, and set free after it. Where the process may use fewer cores than the streams
// want, nothing is pinned and nothing spins: the streams take turns, slower but right.
class CpuStreams {
 public:
  explicit CpuStreams(const CpuStreamsOptions& options);
  ~CpuStreams();
  CpuStreams(const CpuStreams&) = delete;
  CpuStreams& operator=(const CpuStreams&) = delete;

  // Runs `work` on every stream at once and returns when all have ended. One run at a time: throws
  // std::runtime_error where another thread is in `Run`, and in a forked child, which has no
  // workers.
  void Run(StreamWork* work);

  int num_streams() const { return options_.num_streams; }
  int threads_per_stream() const { return options_.threads_per_stream; }
  std::chrono::nanoseconds spin() const { return options_.spin; }
  // False where the streams share cores for want of enough of them.
  bool has_own_cores() const { return !cores_.empty(); }

 private:
  void RunWorker(int stream);
  void RunOnAllStreams(StreamWork* work);

  CpuStreamsOptions options_;
  // The CPUs of each stream; empty where the streams share.
  std::vector<std::vector<int>> cores_;
  std::vector<int> callers_cpus_;
  int fork_generation_;

  std::atomic<bool> busy_{false};
  uint64_t run_ = 0;            // Written by the caller before it signals `start_`.
  StreamWork* work_ = nullptr;  // Likewise; null tells the workers to end.
  Event start_;
  std::unique_ptr<Event[]> done_;  // One a worker, signalled when its part of a run has ended.
  std::vector<std::thread> workers_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_STREAMS_H_
