#include "runtime/onednn_api.h"

#include <dlfcn.h>

#include <stdexcept>

namespace tvm_interop {
namespace onednn {
namespace {

void* Find(void* library, const std::string& path, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error("`" + path + "` has no `" + name + "`");
  return symbol;
}

}  // namespace

Api Api::Load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw std::runtime_error(why != nullptr ? why : "`" + path + "` does not load");
  }
  Api api;
  // The version first: what another major version calls by the same name may be another function.
  api.version = reinterpret_cast<const Version* (*)()>(Find(library, path, "dnnl_version"));
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
#define TVM_INTEROP_FIND(result, name, args) \
  api.name = reinterpret_cast<result(*) args>(Find(library, path, "dnnl_" #name));
  TVM_INTEROP_ONEDNN_FUNCTIONS(TVM_INTEROP_FIND)
#undef TVM_INTEROP_FIND
  if (version.cpu_runtime == kOpenMP) {
    // Searched for in what the library itself depends on: the OpenMP that it will use.
    api.set_team_size = reinterpret_cast<void (*)(int)>(Find(library, path, "omp_set_num_threads"));
    api.team_size = reinterpret_cast<int (*)()>(Find(library, path, "omp_get_max_threads"));
  }
  return api;
}

}  // namespace onednn
}  // namespace tvm_interop
