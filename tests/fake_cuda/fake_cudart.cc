// A fake libcudart.so.13: errors, devices and memory.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fake_cuda.h"

using fake_cuda::Block;
using fake_cuda::BlockOf;
using fake_cuda::CurrentDevice;
using fake_cuda::Enqueue;
using fake_cuda::kInvalidDevice;
using fake_cuda::kInvalidValue;
using fake_cuda::kMemoryAllocation;
using fake_cuda::kSuccess;
using fake_cuda::LastError;
using fake_cuda::Line;
using fake_cuda::Moments;
using fake_cuda::Resolve;
using fake_cuda::RuntimeCall;
using fake_cuda::Stream;
using fake_cuda::TheState;

namespace {

constexpr int kOfHost = -1;
// New memory has this byte everywhere, so that a read of memory that nobody wrote is noticed.
constexpr int kUnwritten = 0xcb;

// The kind of memory that an address is in: 0 for memory that CUDA does not know, 1 for pinned
// memory of the host, 2 for memory of a device.
struct PointerAttributes {
  int type;
  int device;
  void* device_address;
  void* host_address;
  long reserved[8];
};

bool IsDevice(int device) { return device >= 0 && device < TheState().num_devices; }

void* Allocate(size_t nbytes, int device) {
  void* address = std::aligned_alloc(256, (nbytes + 255) / 256 * 256);
  if (address == nullptr) return nullptr;
  std::memset(address, kUnwritten, nbytes);
  TheState().blocks[static_cast<char*>(address)] = Block{nbytes, device};
  return address;
}

// Frees a block after all work of all devices has ended. CUDA does not promise that `cudaFreeHost`
// waits for work that uses the memory. So pinned memory is overwritten before the wait. Work that
// still uses it then finds wrong bytes.
int Free(const char* call, void* address, bool is_of_host) {
  Moments ends;
  int status = RuntimeCall(call, [&]() -> int {
    Line(call).Add("address", address);
    if (address == nullptr) return kSuccess;
    auto& blocks = TheState().blocks;
    const auto block = blocks.find(static_cast<char*>(address));
    if (block == blocks.end() || (block->second.device == kOfHost) != is_of_host) {
      return kInvalidValue;
    }
    if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
    if (is_of_host) std::memset(address, kUnwritten, block->second.nbytes);
    blocks.erase(block);
    ends = fake_cuda::EndsOfAll();
    return kSuccess;
  });
  if (status != kSuccess || address == nullptr) return status;
  status = fake_cuda::AwaitAll(ends);
  std::free(address);
  return status;
}

struct CopyCall {
  const char* name;
  void* to;
  const void* from;
  size_t nbytes;
  int to_device = kOfHost;  // Or `kOfHost` if the call does not name it.
  int from_device = kOfHost;
};

// "For transfers between device memory and pageable host memory, the function might be synchronous
// with respect to host." So the host's memory may be read at once or later, and written before the
// call returns or later.
int Copy(const CopyCall& copy, Stream* stream, bool is_to_host, bool is_from_host,
         Moments* awaited) {
  Line(copy.name)
      .Add("to_device", int64_t{copy.to_device})
      .Add("from_device", int64_t{copy.from_device})
      .Add("to", copy.to)
      .Add("from", copy.from)
      .Add("nbytes", static_cast<int64_t>(copy.nbytes))
      .Add("stream", int64_t{stream->id});
  if (const int refused = fake_cuda::RefuseStream(stream)) return refused;
  const bool is_pageable = (is_to_host && BlockOf(copy.to, copy.nbytes) == nullptr) ||
                           (is_from_host && BlockOf(copy.from, copy.nbytes) == nullptr);
  const bool is_at_once = is_pageable && stream->capture == nullptr && fake_cuda::Toss();
  if (is_at_once && is_from_host) {
    const auto* bytes = static_cast<const char*>(copy.from);
    auto staged = std::make_shared<std::vector<char>>(bytes, bytes + copy.nbytes);
    return Enqueue(stream, [staged, copy] { std::memcpy(copy.to, staged->data(), copy.nbytes); });
  }
  const int status = Enqueue(stream, [copy] { std::memcpy(copy.to, copy.from, copy.nbytes); });
  if (status == kSuccess && is_at_once) awaited->push_back(fake_cuda::EndOf(stream));
  return status;
}

}  // namespace

extern "C" {

// Errors, versions, devices.

const char* cudaGetErrorName(int status) { return fake_cuda::NameOf(status); }
const char* cudaGetErrorString(int status) { return fake_cuda::NameOf(status); }

// "Returns the last error that has been produced by any of the runtime calls in the host thread and
// resets it." A failure of the GPU is not reset.
int cudaGetLastError() {
  const int status = LastError();
  LastError() = TheState().failure;
  return status;
}
int cudaPeekAtLastError() { return LastError(); }
int cudaRuntimeGetVersion(int* version) { return *version = 13000, kSuccess; }
int cudaDriverGetVersion(int* version) { return *version = 13000, kSuccess; }

int cudaGetDeviceCount(int* count) {
  return RuntimeCall("cudaGetDeviceCount", [&] {
    *count = TheState().num_devices;
    return kSuccess;
  });
}

int cudaGetDevice(int* device) {
  return RuntimeCall("cudaGetDevice", [&] {
    *device = CurrentDevice();
    return kSuccess;
  });
}

int cudaSetDevice(int device) {
  return RuntimeCall("cudaSetDevice", [&]() -> int {
    if (!IsDevice(device)) return kInvalidDevice;
    CurrentDevice() = device;
    return kSuccess;
  });
}

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  // Returns the numbers of an H100 for the attributes that callers ask for.
  static const std::map<int, int> attributes{
      {1, 1024},  // Threads of a block.
      {2, 1024},      {3, 1024},    {4, 64},     {5, 2147483647},
      {6, 65535},     {7, 65535},   {8, 49152},  // Shared memory of a block, in bytes.
      {10, 32},                                  // Threads of a warp.
      {12, 65536},                               // Registers of a block.
      {13, 1980000},                             // Clock, in kHz.
      {16, 132},                                 // Multiprocessors.
      {38, 52428800},                            // L2 cache, in bytes.
      {39, 2048},                                // Threads of a multiprocessor.
      {75, 9},                                   // Compute capability, major and minor.
      {76, 0},        {81, 233472}, {82, 65536}, {97, 232448},  // Shared memory of a block that
                                                                // asks for more.
  };
  return RuntimeCall("cudaDeviceGetAttribute", [&]() -> int {
    if (!IsDevice(device)) return kInvalidDevice;
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return kInvalidValue;
    *value = found->second;
    return kSuccess;
  });
}

int cudaGetDeviceProperties(void* properties, int device) {
  return RuntimeCall("cudaGetDeviceProperties", [&]() -> int {
    if (!IsDevice(device)) return kInvalidDevice;
    std::memset(properties, 0, 256);  // The name comes first in every version of the structure.
    std::strcpy(static_cast<char*>(properties), "Fake GPU");
    return kSuccess;
  });
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return RuntimeCall("cudaDeviceGetStreamPriorityRange", [&] {
    *least = 0;
    *greatest = -5;
    return kSuccess;
  });
}

int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return RuntimeCall("cudaDeviceCanAccessPeer", [&]() -> int {
    if (!IsDevice(device) || !IsDevice(peer)) return kInvalidDevice;
    *can = TheState().can_access_peers && device != peer;
    return kSuccess;
  });
}

int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return RuntimeCall("cudaDeviceEnablePeerAccess", [&]() -> int {
    auto& peers = TheState().peers;
    const auto pair = std::make_pair(CurrentDevice(), peer);
    Line("cudaDeviceEnablePeerAccess")
        .Add("device", int64_t{pair.first})
        .Add("peer", int64_t{peer});
    if (!IsDevice(peer)) return kInvalidDevice;
    if (flags != 0) return kInvalidValue;
    if (!TheState().can_access_peers) return fake_cuda::kPeerAccessUnsupported;
    if (std::find(peers.begin(), peers.end(), pair) != peers.end()) {
      return fake_cuda::kPeerAccessAlreadyEnabled;
    }
    peers.push_back(pair);
    return kSuccess;
  });
}

// Memory.

int cudaMalloc(void** address, size_t nbytes) {
  return RuntimeCall("cudaMalloc", [&]() -> int {
    const int refused = fake_cuda::RefuseWhileCapturing();
    *address = refused || nbytes == 0 ? nullptr : Allocate(nbytes, CurrentDevice());
    Line("cudaMalloc")
        .Add("address", *address)
        .Add("nbytes", static_cast<int64_t>(nbytes))
        .Add("device", int64_t{CurrentDevice()});
    if (refused) return refused;
    return *address == nullptr && nbytes > 0 ? kMemoryAllocation : kSuccess;
  });
}

int cudaFree(void* address) { return Free("cudaFree", address, false); }

int cudaMallocHost(void** address, size_t nbytes) {
  return RuntimeCall("cudaMallocHost", [&]() -> int {
    if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
    *address = Allocate(nbytes, kOfHost);
    Line("cudaMallocHost").Add("address", *address).Add("nbytes", static_cast<int64_t>(nbytes));
    return *address == nullptr ? kMemoryAllocation : kSuccess;
  });
}

int cudaFreeHost(void* address) { return Free("cudaFreeHost", address, true); }

int cudaMemGetInfo(size_t* free, size_t* total) {
  return RuntimeCall("cudaMemGetInfo", [&] {
    *free = *total = size_t{64} << 30;
    return kSuccess;
  });
}

int cudaPointerGetAttributes(PointerAttributes* attributes, const void* address) {
  return RuntimeCall("cudaPointerGetAttributes", [&]() -> int {
    const Block* block = BlockOf(address, 1);
    *attributes = {};
    attributes->type = block == nullptr ? 0 : block->device < 0 ? 1 : 2;
    attributes->device = block == nullptr ? -2 : std::max(block->device, 0);
    return kSuccess;
  });
}

int cudaMemsetAsync(void* address, int byte, size_t nbytes, void* stream) {
  return RuntimeCall("cudaMemsetAsync", [&]() -> int {
    Stream* on = Resolve(stream);
    Line("cudaMemsetAsync")
        .Add("to", address)
        .Add("nbytes", static_cast<int64_t>(nbytes))
        .Add("stream", int64_t{on->id});
    if (BlockOf(address, nbytes) == nullptr) return kInvalidValue;
    return Enqueue(on, [=] { std::memset(address, byte, nbytes); });
  });
}

// "Calling cudaMemcpyAsync() with dst and src pointers that do not match the direction of the copy
// results in an undefined behavior": here the call is refused.
int cudaMemcpyAsync(void* to, const void* from, size_t nbytes, int kind, void* stream) {
  Moments awaited;
  const int status = RuntimeCall("cudaMemcpyAsync", [&]() -> int {
    constexpr int kToDevice = 1, kFromDevice = 2, kDefault = 4;
    const auto is_on_device = [&](const void* address) {
      const Block* block = BlockOf(address, nbytes);
      return block != nullptr && block->device != kOfHost;
    };
    const bool is_to_host = !is_on_device(to), is_from_host = !is_on_device(from);
    if (kind < 0 || kind > kDefault) return 21;  // cudaErrorInvalidMemcpyDirection
    if (kind != kDefault &&
        (is_to_host == ((kind & kToDevice) != 0) || is_from_host == ((kind & kFromDevice) != 0))) {
      return kInvalidValue;
    }
    return Copy({"cudaMemcpyAsync", to, from, nbytes}, Resolve(stream), is_to_host, is_from_host,
                &awaited);
  });
  return status != kSuccess || awaited.empty() ? status : fake_cuda::AwaitAll(awaited);
}

int cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t nbytes,
                        void* stream) {
  return RuntimeCall("cudaMemcpyPeerAsync", [&]() -> int {
    if (!IsDevice(to_device) || !IsDevice(from_device)) return kInvalidDevice;
    return Copy({"cudaMemcpyPeerAsync", to, from, nbytes, to_device, from_device}, Resolve(stream),
                false, false, nullptr);
  });
}
}
