// The state that the fake driver and the fake runtime share, the log, and the switches for tests.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "fake_cuda.h"

namespace fake_cuda {
namespace {

// The objects below are never freed, because libraries call us while they are unloaded.
std::mutex& TheMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::FILE* g_log = nullptr;

std::map<std::string, int>& FailuresOfCalls() {
  static auto* failures = new std::map<std::string, int>;
  return *failures;
}

std::map<std::string, int>& FailuresOfWork() {
  static auto* failures = new std::map<std::string, int>;
  return *failures;
}

int TakeFailure(std::map<std::string, int>* failures, const std::string& name) {
  const auto found = failures->find(name);
  if (found == failures->end()) return kSuccess;
  const int status = found->second;
  failures->erase(found);
  Line("failure").Add("of", name).Add("status", int64_t{status});
  return status;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

State* MakeState() {
  auto* made = new State;
  const char* devices = std::getenv("FAKE_CUDA_DEVICES");
  if (devices != nullptr) made->num_devices = std::atoi(devices);
  made->default_streams.resize(made->num_devices);
  for (int device = 0; device < made->num_devices; ++device) {
    made->default_streams[device].device = device;
    made->default_streams[device].is_blocking = true;
  }
  return made;
}

}  // namespace

State& TheState() {
  static State* state = MakeState();
  return *state;
}

const char* NameOf(int status) {
  static const auto* names = new std::map<int, const char*>{
      {kSuccess, "cudaSuccess"},
      {kInvalidValue, "cudaErrorInvalidValue"},
      {kMemoryAllocation, "cudaErrorMemoryAllocation"},
      {kInitializationError, "cudaErrorInitializationError"},
      {kInvalidDevice, "cudaErrorInvalidDevice"},
      {kInvalidImage, "cudaErrorInvalidKernelImage"},
      {kNoImageForDevice, "cudaErrorNoKernelImageForDevice"},
      {kPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported"},
      {kInvalidHandle, "cudaErrorInvalidResourceHandle"},
      {kNotFound, "cudaErrorSymbolNotFound"},
      {kNotReady, "cudaErrorNotReady"},
      {kIllegalAddress, "cudaErrorIllegalAddress"},
      {kLaunchOutOfResources, "cudaErrorLaunchOutOfResources"},
      {kPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled"},
      {kLaunchFailure, "cudaErrorLaunchFailure"},
      {kCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
      {kCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
      {kCaptureMerge, "cudaErrorStreamCaptureMerge"},
      {kCaptureUnmatched, "cudaErrorStreamCaptureUnmatched"},
      {kCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
      {kCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
      {kCaptureImplicit, "cudaErrorStreamCaptureImplicit"},
      {kCapturedEvent, "cudaErrorCapturedEvent"},
      {kCaptureWrongThread, "cudaErrorStreamCaptureWrongThread"},
  };
  const auto found = names->find(status);
  return found == names->end() ? "cudaErrorUnknown" : found->second;
}

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

int& LastError() {
  thread_local int status = kSuccess;
  return status;
}

// A process that was forked after CUDA started has lost the GPU, and gets
// "CUDA_ERROR_NOT_INITIALIZED". CUDA's documentation on a failure such as an illegal address: "any
// further CUDA work will return the same error".
Call::Call(const char* name) : lock_(TheMutex()) {
  State& state = TheState();
  if (state.owner == 0) state.owner = getpid();
  if (state.owner != getpid()) {
    process_status_ = kInitializationError;
  } else if (state.failure != kSuccess) {
    process_status_ = state.failure;
  } else {
    injected_ = FailureOfNextCall(name);
    if (injected_ == kIllegalAddress || injected_ == kLaunchFailure) state.failure = injected_;
  }
}

int FailureOfNextCall(const std::string& name) { return TakeFailure(&FailuresOfCalls(), name); }

int FailureOfNextWork(const std::string& name) { return TakeFailure(&FailuresOfWork(), name); }

int AwaitAll(const Moments& moments) {
  for (const auto& moment : moments) moment->Await();
  const Call call("");
  State& state = TheState();
  for (const auto& moment : moments) {
    if (!IsAsynchronous()) state.host_ns = std::max(state.host_ns, moment->time_ns());
  }
  state.failure = state.unnoticed_failure.load();
  if (state.failure != kSuccess) LastError() = state.failure;
  return state.failure;
}

// `cudaStreamLegacy` is 1 and `cudaStreamPerThread` is 2. Here both stand for the default stream,
// so `cudaStreamPerThread` waits for more work than in CUDA.
Stream* Resolve(void* stream) {
  constexpr intptr_t kLastSpecial = 2;
  return reinterpret_cast<intptr_t>(stream) <= kLastSpecial
             ? &TheState().default_streams[CurrentDevice()]
             : static_cast<Stream*>(stream);
}

static std::string& CallWithoutWait() {
  static auto* const call = new std::string;
  return *call;
}

bool IsWithoutWait(const char* call) { return CallWithoutWait() == call; }

const Block* BlockOf(const void* address, size_t nbytes) {
  const auto& blocks = TheState().blocks;
  const auto* begin = static_cast<const char*>(address);
  auto found = blocks.upper_bound(begin);
  if (found == blocks.begin()) return nullptr;
  --found;
  return begin + nbytes <= found->first + found->second.nbytes ? &found->second : nullptr;
}

Line::Line(const char* call) : is_on_(g_log != nullptr) {
  if (is_on_) text_ = "{\"call\":" + Quoted(call);
}

Line::~Line() {
  if (!is_on_) return;
  text_ += "}\n";
  std::fputs(text_.c_str(), g_log);
}

Line& Line::Add(const char* key, int64_t value) {
  if (is_on_) text_ += "," + Quoted(key) + ":" + std::to_string(value);
  return *this;
}

Line& Line::Add(const char* key, const void* address) {
  return Add(key, static_cast<int64_t>(reinterpret_cast<intptr_t>(address)));
}

Line& Line::Add(const char* key, const std::string& text) {
  if (is_on_) text_ += "," + Quoted(key) + ":" + Quoted(text);
  return *this;
}

}  // namespace fake_cuda

using fake_cuda::Call;
using fake_cuda::kSuccess;
using fake_cuda::Line;
using fake_cuda::TheState;

extern "C" {

// Switches for tests.

void FakeCudaStartLog(const char* path) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  fake_cuda::g_log = std::fopen(path, "w");
}

void FakeCudaStopLog() {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  if (fake_cuda::g_log != nullptr) std::fclose(fake_cuda::g_log);
  fake_cuda::g_log = nullptr;
}

// Writes a line into the log. It says that the next launches belong to the operator `op`.
void FakeCudaNote(const char* op) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  Line("note").Add("op", std::string(op));
}

// Makes the next call of a function, such as `cudaMalloc`, fail with `status`. If the status tells
// of a failure of the GPU, such as an illegal address, all later calls return it too.
void FakeCudaFailNext(const char* call, int status) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  fake_cuda::FailuresOfCalls()[call] = status;
}

// Makes the next launch of the kernel `name` succeed, and fail with `status` when the GPU runs the
// kernel. The first call that waits for the GPU notices the failure. All later calls return it.
void FakeCudaFailWork(const char* name, int status) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  fake_cuda::FailuresOfWork()[name] = status;
}

// Repairs the GPU after a failure, as the start of another process would.
void FakeCudaRepair() {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  TheState().failure = kSuccess;
  TheState().unnoticed_failure = kSuccess;
}

// Sets the time that the host takes to put a kernel, a copy or a whole graph on a stream.
void FakeCudaSetLaunchTime(double us) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  TheState().launch_ns = static_cast<int64_t>(us * 1e3);
}

// Sets the time that the GPU takes to begin a graph, unless the graph is empty.
void FakeCudaSetGraphStart(double us) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  TheState().graph_start_ns = static_cast<int64_t>(us * 1e3);
}

// Sets two times for each node of a graph: the GPU's time to begin the node after the node before
// it, and the host's time for the node when it launches the graph.
void FakeCudaSetNodeTimes(double gpu_us, double host_us) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  TheState().node_ns = static_cast<int64_t>(gpu_us * 1e3);
  TheState().node_launch_ns = static_cast<int64_t>(host_us * 1e3);
}

// Plants a fault: the function `call` succeeds without waiting for anything. An empty name ends the
// fault. The function is `cudaStreamWaitEvent`, `cudaStreamSynchronize` or `cudaEventSynchronize`.
void FakeCudaSetWithoutWait(const char* call) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  fake_cuda::CallWithoutWait() = call;
}

// The bytes of a GPU's memory that are allocated now, and the number of blocks. The device -1
// stands for pinned memory of the host.
void FakeCudaAllocated(int device, int64_t* nbytes, int64_t* blocks) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  *nbytes = *blocks = 0;
  for (const auto& [address, block] : TheState().blocks) {
    if (block.device != device) continue;
    *nbytes += static_cast<int64_t>(block.nbytes);
    ++*blocks;
  }
}

// Sets whether the GPUs can access each other's memory.
void FakeCudaSetPeerAccess(int can) {
  const std::lock_guard<std::mutex> lock(fake_cuda::TheMutex());
  TheState().can_access_peers = can != 0;
}

// Launches a kernel of a test. The kernel calls `effect(arg)`, unless `effect` is null.
int FakeCudaLaunch(const char* name, void* stream, void (*effect)(int64_t), int64_t arg) {
  return fake_cuda::RuntimeCall("launch", [&] {
    fake_cuda::Stream* on = fake_cuda::Resolve(stream);
    Line("launch")
        .Add("kernel", std::string(name))
        .Add("stream", int64_t{on->id})
        .Add("device", int64_t{fake_cuda::CurrentDevice()});
    return fake_cuda::Launch(on, name, [effect, arg] {
      if (effect != nullptr) effect(arg);
    });
  });
}
}
