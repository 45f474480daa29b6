#include "runtime/cuda/nvidia_version.h"

#include <stdexcept>

namespace tvm_interop {
namespace {

size_t MajorOf(size_t version) { return version / 10000; }

}  // namespace

void CheckMajorVersion(const std::string& path, const std::string& name, size_t version,
                       size_t major) {
  if (MajorOf(version) == major) return;
  throw std::runtime_error("`" + path + "` is " + name + " " + std::to_string(MajorOf(version)) +
                           ", not " + std::to_string(major));
}

std::string VersionText(size_t version) {
  return std::to_string(MajorOf(version)) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace tvm_interop
