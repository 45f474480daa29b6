#include "runtime/cuda/cudnn/api.h"

#include "runtime/core/shared_library.h"
#include "runtime/cuda/nvidia_version.h"

namespace tvm_interop {
namespace cudnn {

Api Api::Load(const std::string& path) {
  const SharedLibrary library(path);
  Api api;
  // Check the version first, because in another major version the same name may mean another
  // function.
  api.GetVersion = library.Find<size_t()>("cudnnGetVersion");
  CheckMajorVersion(path, "cuDNN", api.GetVersion(), kVersion);
#define TVM_INTEROP_FIND(result, name, args) api.name = library.Find<result args>("cudnn" #name);
  TVM_INTEROP_CUDNN_FUNCTIONS(TVM_INTEROP_FIND)
#undef TVM_INTEROP_FIND
  return api;
}

}  // namespace cudnn
}  // namespace tvm_interop
