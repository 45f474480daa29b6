#ifndef RUNTIME_CUDA_MEMORY_H_
#define RUNTIME_CUDA_MEMORY_H_

#include <cstddef>
#include <memory>

#include "runtime/cuda/api.h"
#include "runtime/cuda/executor.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// A block of a GPU's memory.
class CudaMemory {
 public:
  // Allocates `nbytes` bytes of zeros. Throws std::runtime_error if the GPU has less free memory.
  CudaMemory(int device, size_t nbytes);
  // The same without the zeros, for a caller that writes all bytes. This is much faster for small
  // blocks, because the host need not wait for the GPU.
  static CudaMemory Unwritten(int device, size_t nbytes);

  int device() const { return device_; }
  size_t nbytes() const { return nbytes_; }
  void* at(size_t offset) const { return static_cast<char*>(memory_.get()) + offset; }

 private:
  CudaMemory(int device, size_t nbytes, cuda::OwnedMemory memory);

  int device_;
  size_t nbytes_;
  cuda::OwnedMemory memory_;
};

// Copies `nbytes` bytes between the host and the GPU `device`, on the GPU's first stream, and
// returns when the copy is done. A run is also over when its call returns, so copies and runs never
// overlap. Throws std::runtime_error if the copy fails.
void CopyToDevice(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes);
void CopyToHost(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes);
// Copies memory of the GPU `device` to memory of a GPU in the same way. The copy begins after the
// work that is now on the stream `producer`.
void CopyOnDevice(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes,
                  cuda::Stream producer);

// An operator that copies a tensor from one GPU to another, on a stream of one of the two GPUs.
class PeerCopy : public CudaKernel {
 public:
  PeerCopy(void* to, int to_device, const void* from, int from_device, size_t nbytes);
  void Launch(const CudaStream& stream) override;

 private:
  void* to_;
  int to_device_;
  const void* from_;
  int from_device_;
  size_t nbytes_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_MEMORY_H_
