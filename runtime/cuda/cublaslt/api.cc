#include "runtime/cuda/cublaslt/api.h"

#include "runtime/core/shared_library.h"
#include "runtime/cuda/nvidia_version.h"

namespace tvm_interop {
namespace cublaslt {

Api Api::Load(const std::string& path) {
  const SharedLibrary library(path);
  Api api;
  // Check the version first, because in another major version the same name may mean another
  // function.
  api.GetVersion = library.Find<size_t()>("cublasLtGetVersion");
  CheckMajorVersion(path, "cuBLASLt", api.GetVersion(), kVersion);
#define TVM_INTEROP_FIND(result, name, args) api.name = library.Find<result args>("cublasLt" #name);
  TVM_INTEROP_CUBLASLT_FUNCTIONS(TVM_INTEROP_FIND)
#undef TVM_INTEROP_FIND
  return api;
}

}  // namespace cublaslt
}  // namespace tvm_interop
