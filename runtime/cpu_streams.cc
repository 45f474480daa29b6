#include "runtime/cpu_streams.h"

#include <pthread.h>

#include <stdexcept>
#include <string>

#include "runtime/cpu_topology.h"

namespace tvm_interop {
namespace {

// Counts the forks this process is the child of: threads do not survive one, and waiting for a
// worker that is gone would hang for ever.
std::atomic<int> fork_generation{0};

int ForkGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });
  (void)registered;
  return fork_generation.load(std::memory_order_relaxed);
}

// Tells the kernel library this thread's team size, when it is not what was told last: a switch
// between two executors on one thread costs, a run of the same one does not.
void SetTeamSize(const CpuStreamsOptions& options) {
  thread_local int current = 0;
  if (options.set_team_size == nullptr || options.threads_per_stream == 0) return;
  if (current == options.threads_per_stream) return;
  options.set_team_size(options.threads_per_stream);
  current = options.threads_per_stream;
}

// Gives each stream its own CPUs, or nothing where there are too few.
std::vector<std::vector<int>> DivideCpus(const std::vector<int>& cpus, int streams, int threads) {
  const size_t each = threads > 0 ? threads : 1;
  if (cpus.size() < each * streams) return {};
  std::vector<std::vector<int>> divided(streams);
  for (int s = 0; s < streams; ++s) {
    divided[s].assign(cpus.begin() + s * each, cpus.begin() + (s + 1) * each);
  }
  return divided;
}

class BusyGuard {
 public:
  explicit BusyGuard(std::atomic<bool>* busy) : busy_(busy) {
    if (busy_->exchange(true, std::memory_order_acquire)) {
      throw std::runtime_error(
          "this module is already running in another thread; load a second one to run two at once");
    }
  }
  ~BusyGuard() { busy_->store(false, std::memory_order_release); }

 private:
  std::atomic<bool>* busy_;
};

}  // namespace

CpuStreams::CpuStreams(const CpuStreamsOptions& options)
    : options_(options), fork_generation_(ForkGeneration()) {
  if (options_.num_streams < 1) {
    throw std::runtime_error("a CPU executor needs at least one stream, got " +
                             std::to_string(options_.num_streams));
  }
  if (options_.num_streams == 1) return;
  callers_cpus_ = AllowedCpus();
  cores_ = DivideCpus(callers_cpus_, options_.num_streams, options_.threads_per_stream);
  if (cores_.empty()) options_.spin = std::chrono::nanoseconds(0);
  done_ = std::make_unique<Event[]>(options_.num_streams);
  for (int s = 1; s < options_.num_streams; ++s) workers_.emplace_back([this, s] { RunWorker(s); });
}

CpuStreams::~CpuStreams() {
  if (fork_generation_ != ForkGeneration()) {
    // The workers live on in the parent only: there is nothing to join here.
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  work_ = nullptr;
  start_.Signal(++run_);
  for (std::thread& worker : workers_) worker.join();
}

void CpuStreams::Run(StreamWork* work) {
  BusyGuard guard(&busy_);
  SetTeamSize(options_);
  if (options_.num_streams == 1) {
    work->RunStream(0, ++run_);
    return;
  }
  if (fork_generation_ != ForkGeneration()) {
    throw std::runtime_error(
        "this module was made before a fork and its threads stayed in the parent; load it again "
        "in the child");
  }
  RunOnAllStreams(work);
}

void CpuStreams::RunOnAllStreams(StreamWork* work) {
  const bool pinned = has_own_cores() && PinThisThread(cores_[0]);
  work_ = work;
  const uint64_t run = ++run_;
  start_.Signal(run);
  work->RunStream(0, run);
  for (int s = 1; s < options_.num_streams; ++s) done_[s].Wait(run, options_.spin);
  if (pinned) PinThisThread(callers_cpus_);
}

void CpuStreams::RunWorker(int stream) {
  if (has_own_cores()) PinThisThread(cores_[stream]);
  SetTeamSize(options_);
  for (uint64_t run = 1;; ++run) {
    start_.Wait(run, options_.spin);
    if (work_ == nullptr) return;
    work_->RunStream(stream, run);
    done_[stream].Signal(run);
  }
}

}  // namespace tvm_interop
