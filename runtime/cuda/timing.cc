#include "runtime/cuda/timing.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <vector>

#include "runtime/cuda/graph.h"

namespace tvm_interop {
namespace {

constexpr int kRounds = 9;
// How often a graph launches its alternative.
constexpr int kLaunches = 8;

float Median(std::vector<float> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

// An alternative that can be launched, and a graph of several launches.
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

// Runs each alternative once, so that its code is loaded, and makes its graph. Returns the
// alternatives for which this is possible, in order, and adds the others to `refusals`.
std::vector<Able> Launchable(size_t number, const CudaStream& stream,
                             const std::function<void(size_t)>& launch,
                             std::vector<std::pair<size_t, std::string>>* refusals) {
  const cuda::Api& api = cuda::Api::Get();
  std::vector<Able> able;
  std::exception_ptr failure;
  for (size_t i = 0; i < number; ++i) {
    try {
      launch(i);
      TVM_INTEROP_CUDA(api, StreamSynchronize, stream.handle);
      able.push_back({i, GraphOf(stream, [&] { launch(i); })});
    } catch (const cuda::LostError&) {
      throw;
    } catch (const std::exception& error) {
      refusals->emplace_back(i, error.what());
      failure = std::current_exception();
    }
  }
  TVM_INTEROP_CUDA(api, StreamSynchronize, stream.handle);
  if (able.empty() && failure != nullptr) std::rethrow_exception(failure);
  if (able.empty()) throw std::runtime_error("there is nothing to choose from");
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
  const std::vector<Able> able = Launchable(number, stream, launch, &fastest.refusals);
  fastest.index = able.front().index;
  if (able.size() == 1) return fastest;
  const cuda::OwnedEvent began = TimingEvent(stream.device);
  const cuda::OwnedEvent ended = TimingEvent(stream.device);
  std::vector<std::vector<float>> ms(able.size(), std::vector<float>(kRounds));
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < able.size(); ++i) {
      TVM_INTEROP_CUDA(api, EventRecord, began.get(), stream.handle);
      TVM_INTEROP_CUDA(api, GraphLaunch, able[i].graph.get(), stream.handle);
      TVM_INTEROP_CUDA(api, EventRecord, ended.get(), stream.handle);
      TVM_INTEROP_CUDA(api, StreamSynchronize, stream.handle);
      TVM_INTEROP_CUDA(api, EventElapsedTime, &ms[i][round], began.get(), ended.get());
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
