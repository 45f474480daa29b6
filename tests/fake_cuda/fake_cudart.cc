// A fake libcudart.so.13 with the functions of CUDA's runtime that we and TVM call.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "fake_cuda.h"

using fake_cuda::Capture;
using fake_cuda::Enqueue;
using fake_cuda::Event;
using fake_cuda::Graph;
using fake_cuda::GraphExec;
using fake_cuda::kSuccess;
using fake_cuda::Line;
using fake_cuda::Resolve;
using fake_cuda::Stream;
using fake_cuda::TheState;

extern "C" {

// Errors, versions, devices.

const char* cudaGetErrorName(int status) {
  switch (status) {
    case 2:
      return "cudaErrorMemoryAllocation";
    case fake_cuda::kCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case fake_cuda::kCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaErrorFake";
  }
}
const char* cudaGetErrorString(int status) { return cudaGetErrorName(status); }
int cudaGetLastError() { return kSuccess; }
int cudaPeekAtLastError() { return kSuccess; }
int cudaRuntimeGetVersion(int* version) { return *version = 13000, kSuccess; }
int cudaDriverGetVersion(int* version) { return *version = 13000, kSuccess; }

int cudaGetDeviceCount(int* count) {
  FAKE_CUDA_CALL("cudaGetDeviceCount");
  *count = TheState().num_devices;
  return kSuccess;
}

int cudaGetDevice(int* device) { return *device = TheState().device, kSuccess; }

int cudaSetDevice(int device) {
  if (device < 0 || device >= TheState().num_devices) return fake_cuda::kInvalidDevice;
  TheState().device = device;
  return kSuccess;
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  // Returns the numbers of an H100 for the attributes that callers ask for.
  switch (attribute) {
    case 8:  // Shared memory of a block, in bytes.
      return *value = 49152, kSuccess;
    case 10:  // Threads of a warp.
      return *value = 32, kSuccess;
    case 16:  // Multiprocessors.
      return *value = 132, kSuccess;
    case 75:  // Compute capability, major and minor.
      return *value = 9, kSuccess;
    case 76:
      return *value = 0, kSuccess;
    default:
      return *value = 1024, kSuccess;
  }
}

int cudaGetDeviceProperties(void* properties, int) {
  std::memset(properties, 0, 256);  // The name comes first in every version of the structure.
  std::strcpy(static_cast<char*>(properties), "Fake GPU");
  return kSuccess;
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

int cudaDeviceCanAccessPeer(int* can, int, int) {
  FAKE_CUDA_CALL("cudaDeviceCanAccessPeer");
  return *can = TheState().can_access_peers, kSuccess;
}

int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  FAKE_CUDA_CALL("cudaDeviceEnablePeerAccess");
  auto& peers = TheState().peers;
  const auto pair = std::make_pair(TheState().device, peer);
  Line("cudaDeviceEnablePeerAccess").Add("device", int64_t{pair.first}).Add("peer", int64_t{peer});
  if (std::find(peers.begin(), peers.end(), pair) != peers.end()) {
    return fake_cuda::kPeerAccessAlreadyEnabled;
  }
  peers.push_back(pair);
  return kSuccess;
}

// Memory.

int cudaMalloc(void** address, size_t nbytes) {
  FAKE_CUDA_CALL("cudaMalloc");
  *address = std::aligned_alloc(256, (nbytes + 255) / 256 * 256);
  Line("cudaMalloc")
      .Add("address", *address)
      .Add("nbytes", static_cast<int64_t>(nbytes))
      .Add("device", int64_t{TheState().device});
  return fake_cuda::RefuseWhileCapturing();
}

int cudaFree(void* address) {
  FAKE_CUDA_CALL("cudaFree");
  Line("cudaFree").Add("address", address);
  std::free(address);
  return fake_cuda::RefuseWhileCapturing();
}

int cudaMallocHost(void** address, size_t nbytes) {
  *address = std::malloc(nbytes);
  return kSuccess;
}

int cudaFreeHost(void* address) {
  std::free(address);
  return kSuccess;
}

int cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{64} << 30;
  return kSuccess;
}

int cudaMemsetAsync(void* address, int byte, size_t nbytes, void* stream) {
  FAKE_CUDA_CALL("cudaMemsetAsync");
  Stream* on = Resolve(stream);
  Line("cudaMemsetAsync")
      .Add("to", address)
      .Add("nbytes", static_cast<int64_t>(nbytes))
      .Add("stream", int64_t{on->id});
  return Enqueue(on, [=] { std::memset(address, byte, nbytes); });
}

// Copies memory. A device is -1 if the call does not name it.
static int Copy(const char* call, void* to, int to_device, const void* from, int from_device,
                size_t nbytes, void* stream) {
  Stream* on = Resolve(stream);
  Line(call)
      .Add("to_device", int64_t{to_device})
      .Add("from_device", int64_t{from_device})
      .Add("to", to)
      .Add("from", from)
      .Add("nbytes", static_cast<int64_t>(nbytes))
      .Add("stream", int64_t{on->id});
  return Enqueue(on, [=] { std::memcpy(to, from, nbytes); });
}

int cudaMemcpyAsync(void* to, const void* from, size_t nbytes, int, void* stream) {
  FAKE_CUDA_CALL("cudaMemcpyAsync");
  return Copy("cudaMemcpyAsync", to, -1, from, -1, nbytes, stream);
}

int cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t nbytes,
                        void* stream) {
  FAKE_CUDA_CALL("cudaMemcpyPeerAsync");
  return Copy("cudaMemcpyPeerAsync", to, to_device, from, from_device, nbytes, stream);
}

// Streams.

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  FAKE_CUDA_CALL("cudaStreamCreate");
  auto* made = new Stream;  // Never freed, so that a use after its destruction is noticed.
  made->id = TheState().next_id++;
  made->device = TheState().device;
  TheState().streams.push_back(made);
  Line("cudaStreamCreate")
      .Add("stream", int64_t{made->id})
      .Add("device", int64_t{made->device})
      .Add("flags", int64_t{flags})
      .Add("priority", int64_t{priority});
  *stream = made;
  return kSuccess;
}
int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
int cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamDestroy(void* stream) {
  Line("cudaStreamDestroy").Add("stream", int64_t{Resolve(stream)->id});
  Resolve(stream)->is_alive = false;
  return kSuccess;
}

int cudaStreamSynchronize(void* stream) {
  FAKE_CUDA_CALL("cudaStreamSynchronize");
  Stream* on = Resolve(stream);
  Line("cudaStreamSynchronize").Add("stream", int64_t{on->id});
  if (!on->is_alive) return fake_cuda::kInvalidHandle;
  return on->capture != nullptr ? fake_cuda::RefuseWhileCapturing() : kSuccess;
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  FAKE_CUDA_CALL("cudaStreamWaitEvent");
  Stream* on = Resolve(stream);
  auto* awaited = static_cast<Event*>(event);
  Line("cudaStreamWaitEvent").Add("stream", int64_t{on->id}).Add("event", int64_t{awaited->id});
  if (!on->is_alive || !awaited->is_alive) return fake_cuda::kInvalidHandle;
  if (awaited->capture != nullptr) on->capture = awaited->capture;
  return kSuccess;
}

// Events.

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  FAKE_CUDA_CALL("cudaEventCreate");
  auto* made = new Event;  // Never freed, so that a use after its destruction is noticed.
  made->id = TheState().next_id++;
  made->device = TheState().device;
  TheState().events.push_back(made);
  Line("cudaEventCreate")
      .Add("event", int64_t{made->id})
      .Add("device", int64_t{made->device})
      .Add("flags", int64_t{flags});
  *event = made;
  return kSuccess;
}
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(void* event) {
  Line("cudaEventDestroy").Add("event", int64_t{static_cast<Event*>(event)->id});
  static_cast<Event*>(event)->is_alive = false;
  return kSuccess;
}

int cudaEventRecord(void* event, void* stream) {
  FAKE_CUDA_CALL("cudaEventRecord");
  Stream* on = Resolve(stream);
  auto* recorded = static_cast<Event*>(event);
  Line("cudaEventRecord").Add("event", int64_t{recorded->id}).Add("stream", int64_t{on->id});
  if (!on->is_alive || !recorded->is_alive) return fake_cuda::kInvalidHandle;
  if (on->id != 0 && on->device != recorded->device) return fake_cuda::kInvalidHandle;
  recorded->capture = on->capture;
  recorded->time_ms = TheState().clock_ms;
  return kSuccess;
}

int cudaEventSynchronize(void* event) {
  Line("cudaEventSynchronize").Add("event", int64_t{static_cast<Event*>(event)->id});
  return fake_cuda::RefuseWhileCapturing();
}

int cudaEventElapsedTime(float* ms, void* from, void* to) {
  if (static_cast<Event*>(to)->device != static_cast<Event*>(from)->device) {
    return fake_cuda::kInvalidHandle;
  }
  *ms = static_cast<float>(static_cast<Event*>(to)->time_ms - static_cast<Event*>(from)->time_ms);
  return kSuccess;
}

// Graphs.

static Graph* NewGraph() {
  auto* graph = new Graph;
  graph->id = TheState().next_id++;
  return graph;
}

int cudaStreamBeginCapture(void* stream, int mode) {
  FAKE_CUDA_CALL("cudaStreamBeginCapture");
  Stream* on = Resolve(stream);
  Line("cudaStreamBeginCapture").Add("stream", int64_t{on->id}).Add("mode", int64_t{mode});
  if (TheState().capture != nullptr || !on->is_alive) return fake_cuda::kInvalidValue;
  TheState().capture = on->capture = new Capture;
  on->capture->graph = NewGraph();
  return kSuccess;
}

int cudaStreamEndCapture(void* stream, void** graph) {
  *graph = nullptr;
  const std::unique_ptr<Capture> capture(Resolve(stream)->capture);
  if (capture == nullptr) return fake_cuda::kInvalidValue;
  for (Stream* other : TheState().streams) {
    if (other->capture == capture.get()) other->capture = nullptr;
  }
  for (Event* event : TheState().events) {
    if (event->capture == capture.get()) event->capture = nullptr;
  }
  TheState().capture = nullptr;
  const int injected = fake_cuda::Injected("cudaStreamEndCapture");
  const int status = capture->is_valid ? injected : int{fake_cuda::kCaptureInvalidated};
  Line("cudaStreamEndCapture")
      .Add("stream", int64_t{Resolve(stream)->id})
      .Add("graph", int64_t{status == kSuccess ? capture->graph->id : 0});
  if (status == kSuccess) {
    *graph = capture->graph;
  } else {
    delete capture->graph;
  }
  return status;
}

int cudaGraphCreate(void** graph, unsigned) {
  Graph* made = NewGraph();
  Line("cudaGraphCreate").Add("graph", int64_t{made->id});
  *graph = made;
  return kSuccess;
}

int cudaGraphAddChildGraphNode(void** node, void* graph, void* const* dependencies,
                               size_t num_dependencies, void* child) {
  FAKE_CUDA_CALL("cudaGraphAddChildGraphNode");
  auto* parent = static_cast<Graph*>(graph);
  auto* part = static_cast<Graph*>(child);
  // The handle of a node is the node's number in the graph, counted from 1.
  Line line("cudaGraphAddChildGraphNode");
  std::string after;
  for (size_t i = 0; i < num_dependencies; ++i) {
    after += (i == 0 ? "" : " ") + std::to_string(reinterpret_cast<intptr_t>(dependencies[i]));
  }
  *node = reinterpret_cast<void*>(static_cast<intptr_t>(++parent->num_children));
  line.Add("graph", int64_t{parent->id})
      .Add("child", int64_t{part->id})
      .Add("node", *node)
      .Add("after", after);
  parent->nodes.insert(parent->nodes.end(), part->nodes.begin(), part->nodes.end());
  return kSuccess;
}

int cudaGraphDestroy(void* graph) {
  Line("cudaGraphDestroy").Add("graph", int64_t{static_cast<Graph*>(graph)->id});
  delete static_cast<Graph*>(graph);
  return kSuccess;
}

int cudaGraphInstantiate(void** exec, void* graph, unsigned long long flags) {
  FAKE_CUDA_CALL("cudaGraphInstantiate");
  auto* made = new GraphExec;
  made->id = TheState().next_id++;
  made->nodes = static_cast<Graph*>(graph)->nodes;
  Line("cudaGraphInstantiate")
      .Add("exec", int64_t{made->id})
      .Add("graph", int64_t{static_cast<Graph*>(graph)->id})
      .Add("flags", static_cast<int64_t>(flags));
  *exec = made;
  return kSuccess;
}

int cudaGraphUpload(void*, void*) { return kSuccess; }

int cudaGraphLaunch(void* exec, void* stream) {
  FAKE_CUDA_CALL("cudaGraphLaunch");
  auto* launched = static_cast<GraphExec*>(exec);
  Stream* on = Resolve(stream);
  Line("cudaGraphLaunch").Add("exec", int64_t{launched->id}).Add("stream", int64_t{on->id});
  return Enqueue(on, [launched] {
    for (const auto& node : launched->nodes) fake_cuda::Do(node);
  });
}

int cudaGraphExecDestroy(void* exec) {
  Line("cudaGraphExecDestroy").Add("exec", int64_t{static_cast<GraphExec*>(exec)->id});
  delete static_cast<GraphExec*>(exec);
  return kSuccess;
}
}
