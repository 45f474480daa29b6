#include "runtime/cuda/streams.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace tvm_interop {

CudaStreams::CudaStreams(const std::vector<CudaStreamOptions>& options) {
  if (options.empty()) throw std::runtime_error("a plan for CUDA needs at least one stream");
  const cuda::Api& api = cuda::Api::Get();
  for (const CudaStreamOptions& wanted : options) cuda::CheckDevice(wanted.device);
  for (const CudaStreamOptions& wanted : options) {
    if (std::find(devices_.begin(), devices_.end(), wanted.device) == devices_.end()) {
      devices_.push_back(wanted.device);
    }
  }
  for (int device : devices_) {
    for (int peer : devices_) {
      if (device != peer && !cuda::EnablePeerAccess(device, peer)) {
        out_of_reach_.emplace_back(device, peer);
      }
    }
  }
  for (const CudaStreamOptions& wanted : options) {
    cuda::DeviceGuard guard(wanted.device);
    int least = 0;
    int greatest = 0;
    TVM_INTEROP_CUDA(api, DeviceGetStreamPriorityRange, &least, &greatest);
    cuda::Stream stream = nullptr;
    TVM_INTEROP_CUDA(api, StreamCreateWithPriority, &stream, cuda::kNonBlocking,
                     wanted.is_urgent ? greatest : least);
    owned_.emplace_back(stream);
    resources_.push_back(std::make_unique<CudaStreamResources>(wanted.device));
    streams_.push_back({wanted.device, stream, resources_.back().get()});
    is_urgent_.push_back(wanted.is_urgent);
  }
}

CudaStream CudaStreams::first_on(int device) const {
  for (const CudaStream& stream : streams_) {
    if (stream.device == device) return stream;
  }
  throw std::runtime_error("the plan has no stream on device `cuda:" + std::to_string(device) +
                           "`");
}

bool CudaStreams::has_urgent() const {
  return std::find(is_urgent_.begin(), is_urgent_.end(), true) != is_urgent_.end();
}

cuda::OwnedEvent CudaStreams::AcquireEvent(int device) {
  {
    const std::lock_guard<std::mutex> lock(free_);
    auto& free = free_events_[device];
    if (!free.empty()) {
      cuda::OwnedEvent event = std::move(free.back());
      free.pop_back();
      return event;
    }
  }
  cuda::DeviceGuard guard(device);
  const cuda::Api& api = cuda::Api::Get();
  cuda::Event event = nullptr;
  TVM_INTEROP_CUDA(api, EventCreateWithFlags, &event, cuda::kWithoutTiming);
  return cuda::OwnedEvent(event);
}

void CudaStreams::ReleaseEvent(int device, cuda::OwnedEvent event) {
  const std::lock_guard<std::mutex> lock(free_);
  free_events_[device].push_back(std::move(event));
}

void CudaStreams::Order(const CudaStream& earlier, const CudaStream& later) {
  const cuda::Api& api = cuda::Api::Get();
  cuda::OwnedEvent event = AcquireEvent(earlier.device);
  TVM_INTEROP_CUDA(api, EventRecord, event.get(), earlier.handle);
  TVM_INTEROP_CUDA(api, StreamWaitEvent, later.handle, event.get(), 0);
  // The next user of the event may record it again at once. This does not affect the wait above: a
  // wait is for the record that was made before the wait.
  ReleaseEvent(earlier.device, std::move(event));
}

void CudaStreams::Settle() const {
  TVM_INTEROP_CUDA(cuda::Api::Get(), StreamSynchronize, streams_.front().handle);
}

CudaStreams::Lease::Lease(CudaStreams* streams)
    : guard_(streams->stream(0).device), streams_(streams) {
  if (streams->in_use_.exchange(true, std::memory_order_acquire)) {
    throw std::runtime_error(
        "another thread is running a model on these CUDA streams; load a second module to run two "
        "at once");
  }
}

}  // namespace tvm_interop
