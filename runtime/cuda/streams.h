#ifndef RUNTIME_CUDA_STREAMS_H_
#define RUNTIME_CUDA_STREAMS_H_

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/cuda/api.h"
#include "runtime/cuda/stream_resources.h"

namespace tvm_interop {

struct CudaStreamOptions {
  int device = 0;
  // Whether the GPU prefers this stream's work, as far as it has to choose: for a critical path.
  bool is_urgent = false;
};

struct CudaStream {
  int device = 0;
  cuda::Stream handle = nullptr;
  CudaStreamResources* resources = nullptr;  // The pool's, like the stream itself.
};

// A pool of streams and events that executors share. Streams are independent of CUDA's default
// stream. All work is put on them by one host thread at a time.
class CudaStreams {
 public:
  // Enables access between each two devices that occur. Throws cuda::MissingError for a device
  // that is not there.
  explicit CudaStreams(const std::vector<CudaStreamOptions>& options);
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  int num_streams() const { return static_cast<int>(streams_.size()); }
  CudaStream stream(int i) const { return streams_.at(i); }
  // The first stream of a device; throws std::runtime_error where it has none.
  CudaStream first_on(int device) const;
  // Each device once, in the order of its first stream.
  const std::vector<int>& devices() const { return devices_; }
  // Pairs of devices of which the first cannot reach the memory of the second: what is copied
  // between them goes through the host.
  const std::vector<std::pair<int, int>>& out_of_reach() const { return out_of_reach_; }
  const std::vector<bool>& is_urgent() const { return is_urgent_; }
  bool has_urgent() const;

  // An event of `device` without timing, from the pool where it has one.
  cuda::OwnedEvent AcquireEvent(int device);
  void ReleaseEvent(int device, cuda::OwnedEvent event);

  // Held while a host thread puts work on the streams; throws std::runtime_error where another
  // thread holds it. Meanwhile any device may become the thread's current one; then it is again
  // the one it was, for PyTorch and others.
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
  std::vector<std::unique_ptr<CudaStreamResources>> resources_;  // Gone before their streams.
  std::vector<bool> is_urgent_;
  std::vector<int> devices_;
  std::vector<std::pair<int, int>> out_of_reach_;
  std::map<int, std::vector<cuda::OwnedEvent>> free_events_;
  std::atomic<bool> in_use_{false};
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_STREAMS_H_
