#include "runtime/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace tvm_interop {
namespace {

// The size of each of a loader's two pieces of pinned memory, in bytes. The GPU copies one piece
// while the host fills the other.
constexpr size_t kPieceBytes = size_t{2} << 20;
// Slots begin at multiples of this many bytes, so that no two slots share a cache line.
constexpr size_t kAlignment = 256;

size_t Aligned(size_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

void PutCopy(CudaStreams* streams, int device, void* to, const void* from, size_t nbytes,
             cuda::CopyKind kind) {
  streams->BetweenRuns(device, [&](cuda::Stream stream) {
    TVM_INTEROP_CUDA(cuda::Api::Get(), MemcpyAsync, to, from, nbytes, kind, stream);
  });
}

}  // namespace

PinnedMemory::PinnedMemory(size_t nbytes) {
  cuda::CheckUsable();
  const cuda::Api& api = cuda::Api::Get();
  void* memory = nullptr;
  TVM_INTEROP_CUDA(api, MallocHost, &memory, std::max<size_t>(nbytes, 1));
  memory_.reset(memory);
}

void PinnedMemory::Closer::operator()(void* memory) const {
  const cuda::Api& api = cuda::Api::Get();
  if (cuda::IsUsable() && api.FreeHost(memory) != cuda::kSuccess) api.GetLastError();
}

PinnedPart::PinnedPart(std::shared_ptr<CudaStreams> streams, char* memory)
    : streams_(std::move(streams)),
      memory_(memory),
      ended_(streams_->AcquireEvent(streams_->stream(0).device)) {}

PinnedPart::~PinnedPart() {
  if (ended_ == nullptr) return;  // The part was moved.
  const cuda::Api& api = cuda::Api::Get();
  if (is_used_ && cuda::IsUsable() && api.EventSynchronize(ended_.get()) != cuda::kSuccess) {
    api.GetLastError();
  }
  streams_->ReleaseEvent(streams_->stream(0).device, std::move(ended_));
}

void PinnedPart::Note() {
  TVM_INTEROP_CUDA(cuda::Api::Get(), EventRecord, ended_.get(), streams_->stream(0).handle);
  is_used_ = true;
}

void PinnedPart::Await() {
  if (!is_used_) return;
  TVM_INTEROP_CUDA(cuda::Api::Get(), EventSynchronize, ended_.get());
  is_used_ = false;
}

CudaLoader::CudaLoader(std::shared_ptr<CudaStreams> streams)
    : streams_(std::move(streams)),
      memory_(2 * kPieceBytes),
      pieces_{PinnedPart(streams_, memory_.at(0)), PinnedPart(streams_, memory_.at(kPieceBytes))} {}

void CudaLoader::ToDevice(int device, void* to, const void* from, size_t nbytes) {
  CudaStreams::Lease lease(streams_.get());
  for (size_t begin = 0; begin < nbytes; begin += kPieceBytes) {
    PinnedPart& piece = pieces_[next_];
    next_ = 1 - next_;
    const size_t size = std::min(kPieceBytes, nbytes - begin);
    piece.Await();
    std::memcpy(piece.memory(), static_cast<const char*>(from) + begin, size);
    PutCopy(streams_.get(), device, static_cast<char*>(to) + begin, piece.memory(), size,
            cuda::kHostToDevice);
    piece.Note();
  }
}

void CudaLoader::ToHost(int device, void* to, const void* from, size_t nbytes) {
  CudaStreams::Lease lease(streams_.get());
  PinnedPart& piece = pieces_[next_];
  for (size_t begin = 0; begin < nbytes; begin += kPieceBytes) {
    const size_t size = std::min(kPieceBytes, nbytes - begin);
    PutCopy(streams_.get(), device, piece.memory(), static_cast<const char*>(from) + begin, size,
            cuda::kDeviceToHost);
    piece.Note();
    piece.Await();
    std::memcpy(static_cast<char*>(to) + begin, piece.memory(), size);
  }
}

CudaStaging::CudaStaging(std::shared_ptr<CudaStreams> streams, std::vector<Port> ports)
    : streams_(std::move(streams)),
      ports_(std::move(ports)),
      memory_(std::accumulate(
          ports_.begin(), ports_.end(), size_t{0},
          [](size_t sum, const Port& port) { return sum + Aligned(port.nbytes); })) {
  size_t offset = 0;
  for (const Port& port : ports_) {
    slots_.emplace_back(streams_, memory_.at(offset));
    offset += Aligned(port.nbytes);
  }
}

void CudaStaging::Write(size_t port, const void* from) {
  CudaStreams::Lease lease(streams_.get());
  PinnedPart& slot = slots_.at(port);
  if (ports_[port].nbytes == 0) return;
  slot.Await();
  std::memcpy(slot.memory(), from, ports_[port].nbytes);
  for (const Place& place : ports_[port].places) {
    PutCopy(streams_.get(), place.device, place.address, slot.memory(), ports_[port].nbytes,
            cuda::kHostToDevice);
  }
  slot.Note();
}

void CudaStaging::Fetch(size_t port) {
  PinnedPart& slot = slots_.at(port);
  if (ports_[port].nbytes == 0) return;
  const Place& place = ports_[port].places.front();
  PutCopy(streams_.get(), place.device, slot.memory(), place.address, ports_[port].nbytes,
          cuda::kDeviceToHost);
  slot.Note();
}

void CudaStaging::FetchAlone(size_t port) {
  CudaStreams::Lease lease(streams_.get());
  Fetch(port);
}

void CudaStaging::Take(size_t port, void* to) {
  cuda::CheckUsable();
  slots_.at(port).Await();
  std::memcpy(to, slots_[port].memory(), ports_[port].nbytes);
}

void CopyOnDevice(CudaStreams* streams, int device, const std::vector<void*>& to, const void* from,
                  size_t nbytes, cuda::Stream producer) {
  CudaStreams::Lease lease(streams);
  if (nbytes == 0) return;
  const CudaStream stream = streams->first_on(device);
  const cuda::DeviceGuard guard(device);  // The producer may be the GPU's default stream.
  streams->Order({device, producer, nullptr}, stream);
  for (void* address : to) {
    PutCopy(streams, device, address, from, nbytes, cuda::kDeviceToDevice);
  }
  TVM_INTEROP_CUDA(cuda::Api::Get(), StreamSynchronize, stream.handle);
}

void OrderAfter(CudaStreams* streams, int device, cuda::Stream consumer) {
  CudaStreams::Lease lease(streams);
  const cuda::DeviceGuard guard(device);  // Each GPU has a default stream of its own.
  streams->Order(streams->stream(0), {device, consumer, nullptr});
}

}  // namespace tvm_interop
