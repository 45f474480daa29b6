#ifndef RUNTIME_CUDA_STREAMS_H_
#define RUNTIME_CUDA_STREAMS_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/cuda/api.h"
#include "runtime/cuda/stream_resources.h"

namespace tvm_interop {

struct CudaStreamOptions {
  int device = 0;
  // Whether the GPU should prefer the work of this stream when it has to choose. This is useful for
  // a critical path.
  bool is_urgent = false;
};

struct CudaStream {
  int device = 0;
  cuda::Stream handle = nullptr;
  CudaStreamResources* resources = nullptr;  // Owned by the pool, like the stream itself.
};

// A pool of streams and events that executors share. The streams are independent of CUDA's default
// stream. Only one host thread at a time may put work on them.
class CudaStreams {
 public:
  // Makes the streams, and enables peer access between every two of their devices. Throws
  // cuda::MissingError if a device does not exist.
  explicit CudaStreams(const std::vector<CudaStreamOptions>& options);
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  int num_streams() const { return static_cast<int>(streams_.size()); }
  CudaStream stream(int i) const { return streams_.at(i); }
  // Returns the first stream of a device. Throws std::runtime_error if the device has none.
  CudaStream first_on(int device) const;
  // The devices of the streams, each device once, in the order of its first stream.
  const std::vector<int>& devices() const { return devices_; }
  // Pairs of devices in which the first device cannot access the memory of the second device.
  // Copies between these devices go through the host.
  const std::vector<std::pair<int, int>>& out_of_reach() const { return out_of_reach_; }
  const std::vector<bool>& is_urgent() const { return is_urgent_; }
  bool has_urgent() const;

  // `AcquireEvent` returns an event of `device` that records no time. It takes the event from the
  // pool, or makes a new event if the pool is empty. `ReleaseEvent` returns an event to the pool.
  // An executor may release an event while another thread holds the lease. So both functions may be
  // called from any thread.
  cuda::OwnedEvent AcquireEvent(int device);
  void ReleaseEvent(int device, cuda::OwnedEvent event);

  // Makes all later work on the stream `later` wait for the work that is now on the stream
  // `earlier`. The caller must hold a `Lease`. The streams need not be of this pool.
  void Order(const CudaStream& earlier, const CudaStream& later);

  // Waits until the first stream has done its work, such as copies of `BetweenRuns`. The caller
  // must hold a `Lease`. Call this before kernels are tried one by one on any stream.
  void Settle() const;

  // Calls `put` with the first stream of a GPU. The work that `put` puts on it happens after all
  // earlier runs and before all later runs, because every run begins and ends on the pool's first
  // stream. The caller must hold a `Lease`.
  template <typename Put>
  void BetweenRuns(int device, Put&& put) {
    const CudaStream origin = stream(0);
    const CudaStream other = first_on(device);
    const cuda::DeviceGuard guard(device);
    const bool is_apart = other.handle != origin.handle;
    if (is_apart) Order(origin, other);
    put(other.handle);
    if (is_apart) Order(other, origin);
  }

  // Must be held while a host thread puts work on the streams. Throws std::runtime_error if a lease
  // is already held. While the lease is held, any device may become the thread's current device.
  // When the lease ends, the earlier device becomes current again, for PyTorch and other users of
  // CUDA.
  class Lease {
   public:
    explicit Lease(CudaStreams* streams);
    ~Lease() { streams_->in_use_.store(false, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    cuda::DeviceGuard guard_;
    CudaStreams* streams_;
  };

 private:
  std::vector<CudaStream> streams_;
  std::vector<cuda::OwnedStream> owned_;
  // `resources_` is declared after the streams, so that it is destroyed before them.
  std::vector<std::unique_ptr<CudaStreamResources>> resources_;
  std::vector<bool> is_urgent_;
  std::vector<int> devices_;
  std::vector<std::pair<int, int>> out_of_reach_;
  std::mutex free_;  // Guards the next field.
  std::map<int, std::vector<cuda::OwnedEvent>> free_events_;
  std::atomic<bool> in_use_{false};
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_STREAMS_H_
