#include "runtime/cuda/api.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <mutex>

#include "runtime/core/shared_library.h"

namespace tvm_interop {
namespace cuda {
namespace {

constexpr const char* kOverride = "TVM_INTEROP_CUDART_LIBRARY";
constexpr const char* kRuntime = "libcudart.so.13";
constexpr const char* kDriver = "libcuda.so.1";

// The failures after which, as CUDA's headers say, "the process must be terminated and relaunched".
constexpr int kLastingFailures[] = {226, 700, 702, 710, 714, 715, 716,
                                    717, 718, 719, 721, 810, 911};

constexpr const char* kRestart =
    "; the GPU cannot be used any more in this process: start a new process, and run the model "
    "under NVIDIA's compute-sanitizer to see which operator fails";

constexpr const char* kForked =
    "this process was forked after CUDA had started, so it cannot use a GPU: start processes with "
    "the method `spawn`, or fork before the first use of a GPU";

// Whether this process can use its GPUs, and the reason if it cannot.
struct Usability {
  std::atomic<pid_t> owner{0};  // The process that loaded CUDA.
  std::atomic<bool> has_failed{false};
  std::mutex mutex;
  std::string failure;  // The first failure that ended the use of the GPUs.
};

Usability& TheUsability() {
  static auto* const usability = new Usability;
  return *usability;
}

bool IsForked() {
  const pid_t owner = TheUsability().owner;
  return owner != 0 && owner != getpid();
}

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
  // Load the driver first. Without a driver, CUDA's runtime would load, but every call would fail.
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
    std::string why = status == kSuccess ? "the driver shows none" : api.GetErrorString(status);
    if (status == kInitializationError)
      why += " (a process that was forked cannot use a GPU that its parent uses)";
    api.GetLastError();
    throw MissingError("no GPU here: " + why + "; compile for `llvm`, or use a machine with one");
  }
  Check(api.driver.Init(0), "cuInit");
  TheUsability().owner = getpid();
  return api;
}

}  // namespace

const Api& Api::Get() {
  static const Api api = LoadApi();  // If this throws, the next call tries again.
  return api;
}

void CheckUsable() {
  if (IsForked()) throw LostError(kForked);
  Usability& usability = TheUsability();
  if (!usability.has_failed) return;
  const std::lock_guard<std::mutex> lock(usability.mutex);
  throw LostError("the GPU failed before: " + usability.failure + kRestart);
}

bool IsUsable() { return !IsForked() && !TheUsability().has_failed; }

void ThrowFailure(int status, const std::string& what) {
  const bool is_lasting = std::find(std::begin(kLastingFailures), std::end(kLastingFailures),
                                    status) != std::end(kLastingFailures);
  if (!is_lasting) throw std::runtime_error(what);
  Usability& usability = TheUsability();
  const std::lock_guard<std::mutex> lock(usability.mutex);
  if (!usability.has_failed) usability.failure = what;
  usability.has_failed = true;
  throw LostError(what + kRestart);
}

void ThrowStatus(int status, const char* call) {
  const Api& api = Api::Get();
  // Forgets the error. Otherwise CUDA would report it again to the next user of CUDA in this
  // thread.
  api.GetLastError();
  ThrowFailure(status, std::string("`") + call + "` failed: " + api.GetErrorString(status) + " (" +
                           api.GetErrorName(status) + ")");
}

int DeviceCount() {
  CheckUsable();
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
  CheckUsable();
  const Api& api = Api::Get();
  TVM_INTEROP_CUDA(api, GetDevice, &previous_);
  TVM_INTEROP_CUDA(api, SetDevice, device);
}

DeviceGuard::~DeviceGuard() {
  if (IsUsable()) Api::Get().SetDevice(previous_);
}

}  // namespace cuda
}  // namespace tvm_interop
