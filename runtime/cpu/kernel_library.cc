#include "runtime/cpu/kernel_library.h"

#include "runtime/core/library_registry.h"
#include "runtime/cpu/onednn/library.h"

namespace tvm_interop {
namespace {

// Returns the registry of kernel libraries for CPUs. Each library has one line in this function.
LibraryRegistry<KernelLibrary>& Registry() {
  static auto* const registry = new LibraryRegistry<KernelLibrary>({
      {"onednn", LoadOneDnn},
  });
  return *registry;
}

}  // namespace

KernelLibrary& LoadKernelLibrary(const std::string& name, const std::string& path) {
  return Registry().Load(name, path);
}

KernelLibrary* FindKernelLibrary(const std::string& name) { return Registry().Find(name); }

}  // namespace tvm_interop
