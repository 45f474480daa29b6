#include "runtime/cuda/timing.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <vector>

#include "runtime/cuda/graph.h"

namespace tvm_interop {
namespace {

constexpr int kRounds = 9;
// How often an alternative (one of the ways to compute an operator) is launched in its graph.
constexpr int kLaunches = 8;
// An alternative is hopeless if its single launch takes longer than `kHopeless` times the shortest
// single launch, plus `kHostMs`. A single launch takes the time of its kernels, plus the time for
// which the GPU waits for the host's calls. The wait is usually at most about 100 us, so the
// fastest alternative does not count as hopeless.
constexpr float kHopeless = 4;
constexpr float kHostMs = 0.1f;

float Median(std::vector<float> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

// Measures how long the GPU takes for work on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(const CudaStream& stream)
      : stream_(stream.handle),
        began_(TimingEvent(stream.device)),
        ended_(TimingEvent(stream.device)) {}

  // Returns how many milliseconds the GPU takes for the work that `issue` puts on the stream.
  template <typename Issue>
  float TimeMs(Issue&& issue) const {
    const cuda::Api& api = cuda::Api::Get();
    TVM_INTEROP_CUDA(api, EventRecord, began_.get(), stream_);
    issue();
    TVM_INTEROP_CUDA(api, EventRecord, ended_.get(), stream_);
    TVM_INTEROP_CUDA(api, StreamSynchronize, stream_);
    float ms = 0;
    TVM_INTEROP_CUDA(api, EventElapsedTime, &ms, began_.get(), ended_.get());
    return ms;
  }

 private:
  cuda::Stream stream_;
  cuda::OwnedEvent began_;
  cuda::OwnedEvent ended_;
};

// Tries an action, such as a launch, with each alternative, and notes the alternatives for which
// the action fails.
class Trials {
 public:
  explicit Trials(Fastest* fastest) : fastest_(fastest) {}

  template <typename Body>
  void Try(size_t index, Body&& body) {
    try {
      body();
    } catch (const cuda::LostError&) {
      throw;
    } catch (const std::exception& error) {
      fastest_->refusals.emplace_back(index, error.what());
      failure_ = std::current_exception();
    }
  }

  // Throws the last failure. If there was none, throws an error that says that there was no
  // alternative.
  [[noreturn]] void Throw() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    throw std::runtime_error("there is nothing to choose from");
  }

 private:
  Fastest* fastest_;
  std::exception_ptr failure_;
};

// An alternative that can be launched, and the time of a single launch.
struct Launched {
  size_t index;
  float ms;
};

// An alternative that can be captured, and a graph that holds several launches of it.
struct Able {
  size_t index;
  cuda::OwnedGraphExec graph;
};

cuda::OwnedGraphExec GraphOf(const CudaStream& stream, const std::function<void()>& launch) {
  const cuda::OwnedGraph graph = CaptureGraph(stream.handle, [&] {
    for (int i = 0; i < kLaunches; ++i) launch();
  });
  return InstantiateGraph(graph.get(), false, stream.handle);
}

// Runs each alternative once, so that its code is loaded, and once more to measure its time.
std::vector<Launched> Launch(size_t number, const CudaStream& stream, const Stopwatch& watch,
                             const std::function<void(size_t)>& launch, Trials* trials) {
  std::vector<Launched> launched;
  for (size_t i = 0; i < number; ++i) {
    trials->Try(i, [&] {
      launch(i);
      TVM_INTEROP_CUDA(cuda::Api::Get(), StreamSynchronize, stream.handle);
      launched.push_back({i, watch.TimeMs([&] { launch(i); })});
    });
  }
  return launched;
}

// Captures a CUDA graph of each alternative that is not hopeless (see `kHopeless`), in order. If
// none of these alternatives can be captured, does the same for the hopeless ones.
std::vector<Able> Capture(std::vector<Launched> launched, const CudaStream& stream,
                          const std::function<void(size_t)>& launch, Trials* trials) {
  std::vector<Able> able;
  while (able.empty() && !launched.empty()) {
    const auto shortest =
        std::min_element(launched.begin(), launched.end(),
                         [](const Launched& a, const Launched& b) { return a.ms < b.ms; });
    const float most_ms = kHopeless * shortest->ms + kHostMs;
    const auto hopeless = std::stable_partition(
        launched.begin(), launched.end(), [&](const Launched& one) { return one.ms <= most_ms; });
    for (auto one = launched.begin(); one != hopeless; ++one) {
      const size_t i = one->index;
      trials->Try(i, [&] { able.push_back({i, GraphOf(stream, [&] { launch(i); })}); });
    }
    launched.erase(launched.begin(), hopeless);
  }
  TVM_INTEROP_CUDA(cuda::Api::Get(), StreamSynchronize, stream.handle);
  return able;
}

}  // namespace

cuda::OwnedEvent TimingEvent(int device) {
  const cuda::DeviceGuard guard(device);
  const cuda::Api& api = cuda::Api::Get();
  cuda::Event event = nullptr;
  TVM_INTEROP_CUDA(api, EventCreateWithFlags, &event, cuda::kWithTiming);
  return cuda::OwnedEvent(event);
}

Fastest FastestOf(size_t number, const CudaStream& stream,
                  const std::function<void(size_t)>& launch) {
  const cuda::Api& api = cuda::Api::Get();
  Fastest fastest;
  Trials trials(&fastest);
  const Stopwatch watch(stream);
  const std::vector<Able> able =
      Capture(Launch(number, stream, watch, launch, &trials), stream, launch, &trials);
  if (able.empty()) trials.Throw();
  std::sort(fastest.refusals.begin(), fastest.refusals.end());
  fastest.index = able.front().index;
  if (able.size() == 1) return fastest;
  std::vector<std::vector<float>> ms(able.size(), std::vector<float>(kRounds));
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < able.size(); ++i) {
      ms[i][round] = watch.TimeMs(
          [&] { TVM_INTEROP_CUDA(api, GraphLaunch, able[i].graph.get(), stream.handle); });
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < able.size(); ++i) {
    if (Median(ms[i]) < Median(ms[best])) best = i;
  }
  fastest.index = able[best].index;
  return fastest;
}

}  // namespace tvm_interop
