#include "runtime/cpu/onednn/api.h"

#include <stdexcept>

#include "runtime/core/shared_library.h"

namespace tvm_interop {
namespace onednn {

std::vector<const char*>& KindFunctionNames() {
  static auto* const names = new std::vector<const char*>;
  return *names;
}

Layout Api::Blocked() const {
  // Kernels with AVX-512 take 16 channels at a time, and kernels for older x86 CPUs take 8. On
  // other processors, oneDNN names no set of instructions and returns 0.
  const int isa = get_effective_cpu_isa();
  return isa == 0 || (isa & kAvx512) != 0 ? Layout::kBlocked16 : Layout::kBlocked8;
}

Api Api::Load(const std::string& path) {
  const SharedLibrary library(path);
  Api api;
  // Check the version first, because in another major version the same name may mean another
  // function.
  api.version = library.Find<const Version*()>("dnnl_version");
  const Version& version = *api.version();
  if (version.major != kVersion) {
    throw std::runtime_error("`" + path + "` is oneDNN " + std::to_string(version.major) + "." +
                             std::to_string(version.minor) + ", not " + std::to_string(kVersion) +
                             ".x");
  }
  if (version.cpu_runtime != kSequential && version.cpu_runtime != kOpenMP) {
    throw std::runtime_error("`" + path +
                             "` brings threads of its own, which streams cannot divide up; give "
                             "one that uses OpenMP or none");
  }
#define TVM_INTEROP_FIND(result, name, args) api.name = library.Find<result args>("dnnl_" #name);
  TVM_INTEROP_ONEDNN_FUNCTIONS(TVM_INTEROP_FIND)
#undef TVM_INTEROP_FIND
  for (const char* name : KindFunctionNames()) api.of_kinds.push_back(library.Find<void()>(name));
  if (version.cpu_runtime == kOpenMP) {
    // The loader also searches the libraries that oneDNN's library depends on. So it finds the
    // functions of the OpenMP library that oneDNN uses.
    api.set_team_size = library.Find<void(int)>("omp_set_num_threads");
    api.team_size = library.Find<int()>("omp_get_max_threads");
  }
  return api;
}

}  // namespace onednn
}  // namespace tvm_interop
