#include "runtime/cuda/memory.h"

#include <algorithm>

namespace tvm_interop {

CudaMemory::CudaMemory(int device, size_t nbytes) : device_(device), nbytes_(nbytes) {
  cuda::CheckDevice(device);
  const cuda::DeviceGuard guard(device);
  const cuda::Api& api = cuda::Api::Get();
  void* memory = nullptr;
  TVM_INTEROP_CUDA(api, Malloc, &memory, std::max<size_t>(nbytes, 1));
  memory_.reset(memory);
}

void FillWithZeros(CudaStreams* streams, const CudaMemory& memory) {
  if (memory.nbytes() == 0) return;
  CudaStreams::Lease lease(streams);
  streams->BetweenRuns(memory.device(), [&](cuda::Stream stream) {
    TVM_INTEROP_CUDA(cuda::Api::Get(), MemsetAsync, memory.at(0), 0, memory.nbytes(), stream);
  });
}

int GpuOf(const void* address) {
  cuda::PointerAttributes attributes;
  TVM_INTEROP_CUDA(cuda::Api::Get(), PointerGetAttributes, &attributes, address);
  return attributes.type == cuda::kDeviceMemory ? attributes.device : -1;
}

PeerCopy::PeerCopy(void* to, int to_device, const void* from, int from_device, size_t nbytes)
    : to_(to), to_device_(to_device), from_(from), from_device_(from_device), nbytes_(nbytes) {}

void PeerCopy::Launch(const CudaStream& stream) {
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, MemcpyPeerAsync, to_, to_device_, from_, from_device_, nbytes_,
                   stream.handle);
}

}  // namespace tvm_interop
