// A fake libcuda.so.1: the functions of the driver that we and TVM call.

#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "fake_cubin.h"
#include "fake_cuda.h"

namespace {

using fake_cuda::DriverCall;
using fake_cuda::kInvalidHandle;
using fake_cuda::kInvalidValue;
using fake_cuda::kLaunchOutOfResources;
using fake_cuda::kNotFound;
using fake_cuda::kSuccess;
using fake_cuda::Line;

// The limits of an H100.
constexpr int kArch = 90;
constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostSharedBytes = 48 << 10;  // Unless an attribute of the function allows more.
constexpr int64_t kMostSharedBytesOptIn = 227 << 10;
constexpr int64_t kRegisters = 65536;

struct Module {
  int device;
  fake_cuda::Kernels kernels;
};

struct Function {
  int device;
  std::string name;
  fake_cuda::KernelLimits limits;
  int64_t dynamic_shared_bytes;  // The most that a launch may ask for.
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};

// A test's description of a kernel: its parameters, each of eight bytes, and its effect on them.
struct Told {
  int num_parameters = 0;
  void (*does)(const int64_t* values) = nullptr;
};

std::map<std::string, Told>& ToldKernels() {
  static auto* told = new std::map<std::string, Told>;
  return *told;
}

// The offset of the address in a parameter: bytes from the beginning of its block of memory.
std::string PlaceOf(int64_t value) {
  for (const auto& [address, block] : fake_cuda::TheState().blocks) {
    const int64_t offset = value - reinterpret_cast<int64_t>(address);
    if (offset >= 0 && offset < static_cast<int64_t>(block.nbytes)) return std::to_string(offset);
  }
  return "?";
}

// The registers that a block takes: each warp takes them in units of 256.
int64_t RegistersOf(const Function& function, int64_t threads) {
  const int64_t warps = (threads + 31) / 32;
  return warps * ((function.limits.registers * 32 + 255) / 256 * 256);
}

// "The maximum x-dimension of a grid is 2^31 - 1, its y- and z-dimension 65535. The maximum x- or
// y-dimension of a block is 1024, its z-dimension 64, and its number of threads 1024."
int WhyNotLaunchable(const LaunchConfig& config, const Function& function) {
  const unsigned most_blocks[] = {2147483647u, 65535u, 65535u};
  const unsigned most_threads[] = {1024u, 1024u, 64u};
  int64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (config.grid[i] == 0 || config.grid[i] > most_blocks[i]) return kInvalidValue;
    if (config.block[i] == 0 || config.block[i] > most_threads[i]) return kInvalidValue;
    threads *= config.block[i];
  }
  if (threads > kMostThreads) return kInvalidValue;
  if (function.limits.most_threads != 0 && threads > function.limits.most_threads) {
    return kInvalidValue;
  }
  if (config.shared_bytes > function.dynamic_shared_bytes) return kInvalidValue;
  if (RegistersOf(function, threads) > kRegisters) return kLaunchOutOfResources;
  return kSuccess;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return DriverCall("cuInit", [] { return kSuccess; });
}

int cuDeviceGetName(char* name, int capacity, int device) {
  return DriverCall("cuDeviceGetName", [&]() -> int {
    if (device < 0 || device >= fake_cuda::TheState().num_devices) return fake_cuda::kInvalidDevice;
    std::snprintf(name, capacity, "Fake GPU %d", device);
    return kSuccess;
  });
}

int cuGetErrorName(int status, const char** name) {
  *name = fake_cuda::NameOf(status);
  return kSuccess;
}

int cuGetErrorString(int status, const char** text) {
  *text = fake_cuda::NameOf(status);
  return kSuccess;
}

int cuModuleLoadData(void** module, const void* data) {
  return DriverCall("cuModuleLoadData", [&]() -> int {
    Line("cuModuleLoadData");
    if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
    auto made = std::make_unique<Module>();
    made->device = fake_cuda::CurrentDevice();
    const int status = fake_cuda::ReadFatbin(data, kArch, &made->kernels);
    if (status != kSuccess) return status;
    fake_cuda::Remember(made.get());
    *module = made.release();
    return kSuccess;
  });
}

// The module is never freed, because TVM unloads its modules when the process ends.
int cuModuleUnload(void*) {
  return DriverCall("cuModuleUnload", [] { return fake_cuda::RefuseWhileCapturing(); });
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  return DriverCall("cuModuleGetFunction", [&]() -> int {
    const auto* loaded = static_cast<Module*>(module);
    const auto found = loaded->kernels.find(name);
    if (found == loaded->kernels.end()) return kNotFound;
    const fake_cuda::KernelLimits& limits = found->second;
    // Like its module, the function is never freed.
    *function = new Function{loaded->device, name, limits, kMostSharedBytes - limits.shared_bytes};
    fake_cuda::Remember(*function);
    return kSuccess;
  });
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  constexpr int kMaxDynamicSharedBytes = 8;
  return DriverCall("cuFuncSetAttribute", [&]() -> int {
    auto* changed = static_cast<Function*>(function);
    if (attribute != kMaxDynamicSharedBytes || value < 0) return kInvalidValue;
    if (value + changed->limits.shared_bytes > kMostSharedBytesOptIn) return kInvalidValue;
    changed->dynamic_shared_bytes = value;
    return kSuccess;
  });
}

int cuTensorMapEncodeTiled() { return kSuccess; }

int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void**) {
  return DriverCall("cuLaunchKernelEx", [&]() -> int {
    const auto* kernel = static_cast<Function*>(function);
    fake_cuda::Stream* stream = fake_cuda::Resolve(config->stream);
    const auto told = ToldKernels().find(kernel->name);
    std::vector<int64_t> values;
    std::string places;
    if (told != ToldKernels().end()) {
      values.resize(told->second.num_parameters);
      for (size_t i = 0; i < values.size(); ++i) {
        std::memcpy(&values[i], parameters[i], sizeof(values[i]));
        places += (i == 0 ? "" : " ") + PlaceOf(values[i]);
      }
    }
    Line("launch")
        .Add("kernel", kernel->name)
        .Add("parameters", places)
        .Add("stream", int64_t{stream->id})
        .Add("device", int64_t{fake_cuda::CurrentDevice()})
        .Add("blocks", int64_t{config->grid[0]} * config->grid[1] * config->grid[2])
        .Add("threads", int64_t{config->block[0]} * config->block[1] * config->block[2]);
    if (const int refused = WhyNotLaunchable(*config, *kernel)) return refused;
    if (kernel->device != stream->device) return kInvalidHandle;
    if (told == ToldKernels().end() || told->second.does == nullptr) {
      return fake_cuda::Launch(stream, kernel->name, nullptr);
    }
    return fake_cuda::Launch(stream, kernel->name,
                             [values, does = told->second.does] { does(values.data()); });
  });
}

// A switch for tests: kernel `name` takes `num_parameters` parameters of eight bytes. When the GPU
// runs the kernel, the kernel calls `does` with the values of the parameters, unless `does` is
// null. The log then says where in its block of memory each parameter points.
void FakeCudaTellKernel(const char* name, int num_parameters, void (*does)(const int64_t*)) {
  const fake_cuda::Call call("FakeCudaTellKernel");
  ToldKernels()[name] = {num_parameters, does};
}
}
