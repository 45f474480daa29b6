#include "runtime/cuda/timing.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <vector>

namespace tvm_interop {
namespace {

constexpr int kRounds = 9;

float Median(std::vector<float> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

// Runs each alternative once, so that its code is loaded. Returns the alternatives that can be
// launched, in order, and adds the others to `refusals`.
std::vector<size_t> Launchable(size_t number, const CudaStream& stream,
                               const std::function<void(size_t)>& launch,
                               std::vector<std::pair<size_t, std::string>>* refusals) {
  const cuda::Api& api = cuda::Api::Get();
  std::vector<size_t> able;
  std::exception_ptr failure;
  for (size_t i = 0; i < number; ++i) {
    try {
      launch(i);
      able.push_back(i);
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
  const std::vector<size_t> able = Launchable(number, stream, launch, &fastest.refusals);
  fastest.index = able.front();
  if (able.size() == 1) return fastest;
  const cuda::OwnedEvent began = TimingEvent(stream.device);
  const cuda::OwnedEvent ended = TimingEvent(stream.device);
  std::vector<std::vector<float>> ms(able.size(), std::vector<float>(kRounds));
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < able.size(); ++i) {
      TVM_INTEROP_CUDA(api, EventRecord, began.get(), stream.handle);
      launch(able[i]);
      TVM_INTEROP_CUDA(api, EventRecord, ended.get(), stream.handle);
      TVM_INTEROP_CUDA(api, StreamSynchronize, stream.handle);
      TVM_INTEROP_CUDA(api, EventElapsedTime, &ms[i][round], began.get(), ended.get());
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < able.size(); ++i) {
    if (Median(ms[i]) < Median(ms[best])) best = i;
  }
  fastest.index = able[best];
  return fastest;
}

}  // namespace tvm_interop
