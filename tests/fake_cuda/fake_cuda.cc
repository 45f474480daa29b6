// A fake libcuda.so.1 with the driver's functions. It also holds the state that the fake driver and
// the fake runtime share, and the switches for tests.

#include "fake_cuda.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace fake_cuda {
namespace {

std::FILE* g_log = nullptr;
std::map<std::string, int>& Failures() {
  static std::map<std::string, int> failures;
  return failures;
}
bool g_any_failures = false;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

struct Function {
  std::string name;
};

}  // namespace

State& TheState() {
  static State* state = [] {
    auto* made = new State;  // Never freed, because libraries call us while they are unloaded.
    const char* devices = std::getenv("FAKE_CUDA_DEVICES");
    if (devices != nullptr) made->num_devices = std::atoi(devices);
    return made;
  }();
  return *state;
}

int Injected(const char* call) {
  if (!g_any_failures) return kSuccess;
  const auto found = Failures().find(call);
  if (found == Failures().end()) return kSuccess;
  const int status = found->second;
  Failures().erase(found);
  g_any_failures = !Failures().empty();
  Line("failure").Add("of", std::string(call)).Add("status", int64_t{status});
  return status;
}

int RefuseWhileCapturing() {
  Capture* capture = TheState().capture;
  if (capture == nullptr) return kSuccess;
  capture->is_valid = false;
  return kCaptureUnsupported;
}

int Enqueue(Stream* stream, std::function<void()> work) {
  if (!stream->is_alive) return kInvalidHandle;
  if (stream->capture != nullptr) {
    if (!stream->capture->is_valid) return kCaptureInvalidated;
    stream->capture->graph->nodes.push_back(std::move(work));
  } else {
    Do(work);
  }
  return kSuccess;
}

void Do(const std::function<void()>& work) {
  TheState().clock_ms += 1e-3;
  if (work) work();
}

Stream* Resolve(void* stream) {
  return stream == nullptr ? &TheState().null_stream : static_cast<Stream*>(stream);
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

using fake_cuda::kSuccess;
using fake_cuda::Line;

extern "C" {

// Switches for tests.

void FakeCudaStartLog(const char* path) { fake_cuda::g_log = std::fopen(path, "w"); }

void FakeCudaStopLog() {
  if (fake_cuda::g_log != nullptr) std::fclose(fake_cuda::g_log);
  fake_cuda::g_log = nullptr;
}

// Writes a line into the log. It says that the next launches belong to the operator `op`.
void FakeCudaNote(const char* op) { Line("note").Add("op", std::string(op)); }

// Makes the next call of a function, such as `cudaMalloc`, fail with `status`.
void FakeCudaFailNext(const char* call, int status) {
  fake_cuda::Failures()[call] = status;
  fake_cuda::g_any_failures = true;
}

// Sets whether the GPUs can access each other's memory.
void FakeCudaSetPeerAccess(int can) { fake_cuda::TheState().can_access_peers = can != 0; }

// Launches a kernel of a test. The kernel calls `effect(arg)`, unless `effect` is null.
int FakeCudaLaunch(const char* name, void* stream, void (*effect)(int64_t), int64_t arg) {
  FAKE_CUDA_CALL("launch");
  fake_cuda::Stream* on = fake_cuda::Resolve(stream);
  Line("launch")
      .Add("kernel", std::string(name))
      .Add("stream", int64_t{on->id})
      .Add("device", int64_t{fake_cuda::TheState().device});
  return fake_cuda::Enqueue(
      on, effect == nullptr ? std::function<void()>() : [effect, arg] { effect(arg); });
}

// The driver's functions.

int cuInit(unsigned) { return kSuccess; }

int cuDeviceGetName(char* name, int capacity, int device) {
  std::snprintf(name, capacity, "Fake GPU %d", device);
  return kSuccess;
}

int cuGetErrorName(int, const char** name) {
  *name = "FAKE";
  return kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "an error of the fake CUDA";
  return kSuccess;
}

int cuModuleLoadData(void** module, const void*) {
  FAKE_CUDA_CALL("cuModuleLoadData");
  Line("cuModuleLoadData");
  if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
  *module = &fake_cuda::TheState();
  return kSuccess;
}

int cuModuleUnload(void*) { return kSuccess; }

int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = new fake_cuda::Function{name};  // Never freed, like its module.
  return kSuccess;
}

int cuFuncSetAttribute(void*, int, int) { return kSuccess; }

int cuTensorMapEncodeTiled() { return kSuccess; }

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};

int cuLaunchKernelEx(const LaunchConfig* config, void* function, void**, void**) {
  FAKE_CUDA_CALL("cuLaunchKernelEx");
  fake_cuda::Stream* stream = fake_cuda::Resolve(config->stream);
  Line("launch")
      .Add("kernel", static_cast<fake_cuda::Function*>(function)->name)
      .Add("stream", int64_t{stream->id})
      .Add("device", int64_t{fake_cuda::TheState().device})
      .Add("blocks", int64_t{config->grid[0]} * config->grid[1] * config->grid[2])
      .Add("threads", int64_t{config->block[0]} * config->block[1] * config->block[2]);
  return fake_cuda::Enqueue(stream, nullptr);
}
}
