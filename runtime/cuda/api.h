#ifndef RUNTIME_CUDA_API_H_
#define RUNTIME_CUDA_API_H_

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

namespace tvm_interop {
namespace cuda {

// The part of CUDA 13's runtime and driver interfaces that we use. Its functions are found at run
// time, so one build works with and without a GPU. The numbers are those of CUDA's own enumerators.

using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Graph = struct GraphObject*;
using GraphNode = struct GraphNodeObject*;
using GraphExec = struct GraphExecObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

enum Status : int { kSuccess = 0, kInitializationError = 3, kPeerAccessAlreadyEnabled = 704 };
enum StreamFlags : unsigned { kNonBlocking = 1 };
enum EventFlags : unsigned { kWithTiming = 0, kWithoutTiming = 2 };
// If an event is recorded during a capture, `kExternal` makes the record a node of the graph, so
// that each run of the graph records the event.
enum RecordFlags : unsigned { kNow = 0, kExternal = 1 };
// In the mode `kThreadLocal`, calls of CUDA by other threads do not break the capture. For example,
// PyTorch may call `cudaMalloc` in another thread.
enum CaptureMode : int { kThreadLocal = 1 };
enum CopyKind : int { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };
enum InstantiateFlags : unsigned long long { kPlain = 0, kUseNodePriority = 8 };
enum DeviceAttribute : int { kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76 };

enum FunctionAttribute : int { kMaxDynamicSharedBytes = 8 };

enum MemoryType : int { kDeviceMemory = 2 };

// The properties of an address: CUDA's `cudaPointerAttributes`.
struct PointerAttributes {
  int type = 0;
  int device = 0;
  void* device_address = nullptr;
  void* host_address = nullptr;
  long reserved[8] = {};
};

// How a kernel is launched: CUDA's `CUlaunchConfig`.
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_nbytes = 0;
  Stream stream = nullptr;
  void* attributes = nullptr;
  unsigned num_attributes = 0;
};

#define TVM_INTEROP_CUDA_RUNTIME_FUNCTIONS(F)                                                 \
  F(const char*, GetErrorName, (int status))                                                  \
  F(const char*, GetErrorString, (int status))                                                \
  F(int, GetLastError, ())                                                                    \
  F(int, RuntimeGetVersion, (int* version))                                                   \
  F(int, DriverGetVersion, (int* version))                                                    \
  F(int, GetDeviceCount, (int* count))                                                        \
  F(int, GetDevice, (int* device))                                                            \
  F(int, SetDevice, (int device))                                                             \
  F(int, DeviceGetAttribute, (int* value, int attribute, int device))                         \
  F(int, DeviceGetStreamPriorityRange, (int* least, int* greatest))                           \
  F(int, DeviceCanAccessPeer, (int* can, int device, int peer))                               \
  F(int, DeviceEnablePeerAccess, (int peer, unsigned flags))                                  \
  F(int, Malloc, (void** address, size_t nbytes))                                             \
  F(int, Free, (void* address))                                                               \
  F(int, MallocHost, (void** address, size_t nbytes))                                         \
  F(int, FreeHost, (void* address))                                                           \
  F(int, PointerGetAttributes, (PointerAttributes*, const void* address))                     \
  F(int, MemsetAsync, (void* address, int byte, size_t nbytes, Stream))                       \
  F(int, MemcpyAsync, (void* to, const void* from, size_t nbytes, int kind, Stream))          \
  F(int, MemcpyPeerAsync,                                                                     \
    (void* to, int to_device, const void* from, int from_device, size_t nbytes, Stream))      \
  F(int, StreamCreateWithPriority, (Stream*, unsigned flags, int priority))                   \
  F(int, StreamDestroy, (Stream))                                                             \
  F(int, StreamSynchronize, (Stream))                                                         \
  F(int, StreamWaitEvent, (Stream, Event, unsigned flags))                                    \
  F(int, StreamBeginCapture, (Stream, int mode))                                              \
  F(int, StreamEndCapture, (Stream, Graph*))                                                  \
  F(int, EventCreateWithFlags, (Event*, unsigned flags))                                      \
  F(int, EventDestroy, (Event))                                                               \
  F(int, EventRecord, (Event, Stream))                                                        \
  F(int, EventRecordWithFlags, (Event, Stream, unsigned flags))                               \
  F(int, EventSynchronize, (Event))                                                           \
  F(int, EventElapsedTime, (float* ms, Event from, Event to))                                 \
  F(int, GraphCreate, (Graph*, unsigned flags))                                               \
  F(int, GraphDestroy, (Graph))                                                               \
  F(int, GraphAddChildGraphNode,                                                              \
    (GraphNode*, Graph, const GraphNode* dependencies, size_t num_dependencies, Graph child)) \
  F(int, GraphInstantiate, (GraphExec*, Graph, unsigned long long flags))                     \
  F(int, GraphUpload, (GraphExec, Stream))                                                    \
  F(int, GraphLaunch, (GraphExec, Stream))                                                    \
  F(int, GraphExecDestroy, (GraphExec))

#define TVM_INTEROP_CUDA_DRIVER_FUNCTIONS(F)                       \
  F(int, Init, (unsigned flags))                                   \
  F(int, DeviceGetName, (char* name, int capacity, int device))    \
  F(int, GetErrorName, (int status, const char** name))            \
  F(int, ModuleLoadData, (Module*, const void* image))             \
  F(int, ModuleUnload, (Module))                                   \
  F(int, ModuleGetFunction, (Function*, Module, const char* name)) \
  F(int, FuncSetAttribute, (Function, int attribute, int value))   \
  F(int, LaunchKernelEx, (const LaunchConfig*, Function, void** parameters, void** extra))

// The functions of CUDA. For example, `api.Malloc` is `cudaMalloc`, and `api.driver.Init` is
// `cuInit`.
struct Api {
#define TVM_INTEROP_DECLARE(result, name, args) result(*name) args = nullptr;
  TVM_INTEROP_CUDA_RUNTIME_FUNCTIONS(TVM_INTEROP_DECLARE)
  struct Driver {
    TVM_INTEROP_CUDA_DRIVER_FUNCTIONS(TVM_INTEROP_DECLARE)
  } driver;
#undef TVM_INTEROP_DECLARE

  // Loads the runtime and the driver library at the first call, and never unloads them. The runtime
  // is `libcudart.so.13`, which TVM's kernels use too. The environment variable
  // TVM_INTEROP_CUDART_LIBRARY can name another file for the runtime. Throws `MissingError` if a
  // library or a GPU is missing.
  static const Api& Get();
};

// The error for a machine without CUDA, without a GPU, or without the requested GPU.
class MissingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The error for a process that cannot use its GPUs any more. After some failures of a kernel, such
// as an illegal address, CUDA returns the same error from all later calls. A process that was
// forked after CUDA had started cannot use CUDA.
class LostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws `LostError` if this process cannot use its GPUs any more.
void CheckUsable();
// Whether this process can still use its GPUs, so that `CheckUsable` does not throw. If the result
// is false, destructors must leave CUDA's objects alone.
bool IsUsable();

// Throws an error with the text `what` about a call that returned `status`. The error is a
// `LostError` if `status` is a failure that ends the use of the GPUs. Otherwise it is a
// std::runtime_error.
[[noreturn]] void ThrowFailure(int status, const std::string& what);
// `ThrowStatus` throws the same kinds of error as `ThrowFailure`. The text is the name `call`
// and CUDA's reason for `status`. `Check` calls `ThrowStatus` only if `status` is not success.
[[noreturn]] void ThrowStatus(int status, const char* call);
inline void Check(int status, const char* call) {
  if (status != kSuccess) ThrowStatus(status, call);
}
// Calls a function of `api` and checks the status that it returns.
#define TVM_INTEROP_CUDA(api, function, ...) \
  ::tvm_interop::cuda::Check((api).function(__VA_ARGS__), "cuda" #function)

// Returns the number of GPUs. Throws `MissingError` if there is none.
int DeviceCount();
// Throws `MissingError` if the device `device` does not exist. `DeviceCount`, `CheckDevice` and
// `DescribeDevice` throw `LostError` if this process cannot use its GPUs any more.
void CheckDevice(int device);
// Returns the device's name, its compute capability and the driver's version, as one text. Measured
// latencies of the device are stored under this text.
std::string DescribeDevice(int device);
// Allows kernels and copies of `device` to access the memory of `peer`. Returns false if the
// hardware cannot do this. Copies then go through the host, which is slower but correct.
bool EnablePeerAccess(int device, int peer);

// Makes a device current for the calling thread, and restores the earlier device at the end. Throws
// `LostError` if this process cannot use its GPUs any more.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

// Destroys the objects of CUDA that the smart pointers below own. Errors of these calls are not
// reported, because nobody could act on them.
struct Closer {
  void operator()(Stream stream) const { Close(Api::Get().StreamDestroy, stream); }
  void operator()(Event event) const { Close(Api::Get().EventDestroy, event); }
  void operator()(Graph graph) const { Close(Api::Get().GraphDestroy, graph); }
  void operator()(GraphExec exec) const { Close(Api::Get().GraphExecDestroy, exec); }
  void operator()(void* memory) const { Close(Api::Get().Free, memory); }

 private:
  template <typename Object>
  static void Close(int (*destroy)(Object), Object object) {
    // If the call failed, reads the error, which clears it. Otherwise CUDA would report the error
    // to the next user of CUDA in this thread.
    if (IsUsable() && destroy(object) != kSuccess) Api::Get().GetLastError();
  }
};
using OwnedStream = std::unique_ptr<StreamObject, Closer>;
using OwnedEvent = std::unique_ptr<EventObject, Closer>;
using OwnedGraph = std::unique_ptr<GraphObject, Closer>;
using OwnedGraphExec = std::unique_ptr<GraphExecObject, Closer>;
using OwnedMemory = std::unique_ptr<void, Closer>;

}  // namespace cuda
}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_API_H_
