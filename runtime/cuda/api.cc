#include "runtime/cuda/api.h"

#include <cstdlib>

#include "runtime/core/shared_library.h"

namespace tvm_interop {
namespace cuda {
namespace {

constexpr const char* kOverride = "TVM_INTEROP_CUDART_LIBRARY";
constexpr const char* kRuntime = "libcudart.so.13";
constexpr const char* kDriver = "libcuda.so.1";

SharedLibrary Open(const std::string& path, const std::string& advice) {
  try {
    return SharedLibrary(path);
  } catch (const std::runtime_error& error) {
    throw MissingError(std::string("no CUDA here: ") + error.what() + "; " + advice);
  }
}

template <typename Function>
Function* Find(const SharedLibrary& library, const char* name) {
  try {
    return library.Find<Function>(name);
  } catch (const std::runtime_error& error) {
    throw MissingError(std::string(error.what()) + ": CUDA 13 is needed");
  }
}

Api LoadApi() {
  const char* override_path = std::getenv(kOverride);
  const std::string path = override_path != nullptr ? override_path : kRuntime;
  // The driver is loaded first. Without the driver, the runtime would load and then fail at every
  // call.
  const SharedLibrary driver = Open(kDriver, "install NVIDIA's driver, or compile for `llvm`");
  const SharedLibrary runtime =
      Open(path,
           "install CUDA 13's runtime (the package nvidia-cuda-runtime), put it "
           "on LD_LIBRARY_PATH, or name it in TVM_INTEROP_CUDART_LIBRARY");
  Api api;
#define TVM_INTEROP_FIND(result, name, args) api.name = Find<result args>(runtime, "cuda" #name);
  TVM_INTEROP_CUDA_RUNTIME_FUNCTIONS(TVM_INTEROP_FIND)
#undef TVM_INTEROP_FIND
#define TVM_INTEROP_FIND(result, name, args) \
  api.driver.name = Find<result args>(driver, "cu" #name);
  TVM_INTEROP_CUDA_DRIVER_FUNCTIONS(TVM_INTEROP_FIND)
#undef TVM_INTEROP_FIND
  int count = 0;
  const int status = api.GetDeviceCount(&count);
  if (status != kSuccess || count == 0) {
    const std::string why =
        status == kSuccess ? "the driver shows none" : api.GetErrorString(status);
    api.GetLastError();
    throw MissingError("no GPU here: " + why + "; compile for `llvm`, or use a machine with one");
  }
  Check(api.driver.Init(0), "cuInit");
  return api;
}

}  // namespace

const Api& Api::Get() {
  static const Api api = LoadApi();  // If this throws, the next call tries again.
  return api;
}

void ThrowStatus(int status, const char* call) {
  const Api& api = Api::Get();
  api.GetLastError();  // Clears the error. Otherwise CUDA would report it again at the next call.
  throw std::runtime_error(std::string("`") + call + "` failed: " + api.GetErrorString(status) +
                           " (" + api.GetErrorName(status) + ")");
}

int DeviceCount() {
  const Api& api = Api::Get();
  int count = 0;
  TVM_INTEROP_CUDA(api, GetDeviceCount, &count);
  return count;
}

void CheckDevice(int device) {
  const int count = DeviceCount();
  if (device >= 0 && device < count) return;
  throw MissingError("there is no device `cuda:" + std::to_string(device) + "`: this machine has " +
                     std::to_string(count) + ", numbered from 0");
}

std::string DescribeDevice(int device) {
  CheckDevice(device);
  const Api& api = Api::Get();
  char name[256] = {};
  int major = 0;
  int minor = 0;
  int driver = 0;
  Check(api.driver.DeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
  TVM_INTEROP_CUDA(api, DeviceGetAttribute, &major, kComputeCapabilityMajor, device);
  TVM_INTEROP_CUDA(api, DeviceGetAttribute, &minor, kComputeCapabilityMinor, device);
  TVM_INTEROP_CUDA(api, DriverGetVersion, &driver);
  return std::string(name) + " sm_" + std::to_string(major) + std::to_string(minor) + " driver " +
         std::to_string(driver);
}

bool EnablePeerAccess(int device, int peer) {
  const Api& api = Api::Get();
  int can = 0;
  TVM_INTEROP_CUDA(api, DeviceCanAccessPeer, &can, device, peer);
  if (can == 0) return false;
  DeviceGuard guard(device);
  const int status = api.DeviceEnablePeerAccess(peer, 0);
  if (status == kPeerAccessAlreadyEnabled) {
    api.GetLastError();
    return true;
  }
  Check(status, "cudaDeviceEnablePeerAccess");
  return true;
}

DeviceGuard::DeviceGuard(int device) {
  const Api& api = Api::Get();
  TVM_INTEROP_CUDA(api, GetDevice, &previous_);
  TVM_INTEROP_CUDA(api, SetDevice, device);
}

DeviceGuard::~DeviceGuard() { Api::Get().SetDevice(previous_); }

}  // namespace cuda
}  // namespace tvm_interop
