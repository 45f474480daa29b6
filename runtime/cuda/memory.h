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
  // Allocates `nbytes` bytes with any contents. Throws std::runtime_error if the GPU has less free
  // memory.
  CudaMemory(int device, size_t nbytes);

  int device() const { return device_; }
  size_t nbytes() const { return nbytes_; }
  void* at(size_t offset) const { return static_cast<char*>(memory_.get()) + offset; }

 private:
  int device_;
  size_t nbytes_;
  cuda::OwnedMemory memory_;
};

// Fills a block with zeros, before all later runs on `streams`. Throws std::runtime_error if the
// streams have no stream on the block's GPU.
void FillWithZeros(CudaStreams* streams, const CudaMemory& memory);

// Returns the GPU that an address belongs to, or -1 if it is memory of the host.
int GpuOf(const void* address);

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
