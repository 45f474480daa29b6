#include "runtime/cuda/memory.h"

#include <algorithm>
#include <utility>

namespace tvm_interop {
namespace {

void Copy(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes,
          cuda::CopyKind kind) {
  if (nbytes == 0) return;
  CudaStreams::Lease lease(streams);
  const cuda::Api& api = cuda::Api::Get();
  const CudaStream stream = streams->first_on(device);
  cuda::DeviceGuard guard(device);
  TVM_INTEROP_CUDA(api, MemcpyAsync, to, from, nbytes, kind, stream.handle);
  TVM_INTEROP_CUDA(api, StreamSynchronize, stream.handle);
}

}  // namespace

CudaMemory::CudaMemory(int device, size_t nbytes, cuda::OwnedMemory memory)
    : device_(device), nbytes_(nbytes), memory_(std::move(memory)) {}

CudaMemory CudaMemory::Unwritten(int device, size_t nbytes) {
  cuda::CheckDevice(device);
  const cuda::DeviceGuard guard(device);
  const cuda::Api& api = cuda::Api::Get();
  void* memory = nullptr;
  TVM_INTEROP_CUDA(api, Malloc, &memory, std::max<size_t>(nbytes, 1));
  return CudaMemory(device, nbytes, cuda::OwnedMemory(memory));
}

CudaMemory::CudaMemory(int device, size_t nbytes) : CudaMemory(Unwritten(device, nbytes)) {
  const cuda::DeviceGuard guard(device);
  const cuda::Api& api = cuda::Api::Get();
  cuda::Stream stream = nullptr;
  TVM_INTEROP_CUDA(api, StreamCreateWithPriority, &stream, cuda::kNonBlocking, 0);
  const cuda::OwnedStream owned(stream);
  TVM_INTEROP_CUDA(api, MemsetAsync, at(0), 0, std::max<size_t>(nbytes, 1), stream);
  TVM_INTEROP_CUDA(api, StreamSynchronize, stream);
}

void CopyToDevice(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes) {
  Copy(streams, device, to, from, nbytes, cuda::kHostToDevice);
}

void CopyToHost(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes) {
  Copy(streams, device, to, from, nbytes, cuda::kDeviceToHost);
}

void CopyOnDevice(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes,
                  cuda::Stream producer) {
  if (nbytes == 0) return;
  CudaStreams::Lease lease(streams);
  const cuda::Api& api = cuda::Api::Get();
  const CudaStream stream = streams->first_on(device);
  const cuda::DeviceGuard guard(device);
  cuda::OwnedEvent event = streams->AcquireEvent(device);
  TVM_INTEROP_CUDA(api, EventRecord, event.get(), producer);
  TVM_INTEROP_CUDA(api, StreamWaitEvent, stream.handle, event.get(), 0);
  TVM_INTEROP_CUDA(api, MemcpyAsync, to, from, nbytes, cuda::kDeviceToDevice, stream.handle);
  TVM_INTEROP_CUDA(api, StreamSynchronize, stream.handle);
  streams->ReleaseEvent(device, std::move(event));
}

PeerCopy::PeerCopy(void* to, int to_device, const void* from, int from_device, size_t nbytes)
    : to_(to), to_device_(to_device), from_(from), from_device_(from_device), nbytes_(nbytes) {}

void PeerCopy::Launch(const CudaStream& stream) {
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, MemcpyPeerAsync, to_, to_device_, from_, from_device_, nbytes_,
                   stream.handle);
}

}  // namespace tvm_interop
