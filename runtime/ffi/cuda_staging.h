#ifndef RUNTIME_FFI_CUDA_STAGING_H_
#define RUNTIME_FFI_CUDA_STAGING_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/object.h>

#include "runtime/cuda/staging.h"
#include "runtime/ffi/cuda_library.h"

namespace tvm_interop {

inline void CheckSameSize(const ffi::Tensor& one, const ffi::Tensor& other) {
  if (ffi::GetDataSize(one) == ffi::GetDataSize(other)) return;
  TVM_FFI_THROW(InputError) << "a tensor of " << ffi::GetDataSize(one)
                            << " bytes cannot be copied to or from a tensor of "
                            << ffi::GetDataSize(other) << " bytes";
}

// The pinned memory of an instance, and the tensors of its inputs and outputs.
class CudaStagingObj : public ffi::Object {
 public:
  CudaStagingObj(const CudaStreamsRef& streams, const ffi::Array<ffi::Array<ffi::Tensor>>& ports);

  CudaStaging* get() const { return staging_.get(); }
  void CheckSizeOf(int64_t port, const ffi::Tensor& host) const {
    CheckSameSize(ports_[port][0], host);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CudaStaging", CudaStagingObj, ffi::Object);

 private:
  ffi::Array<ffi::Array<ffi::Tensor>> ports_;  // Keeps the memory of the tensors alive.
  std::unique_ptr<CudaStaging> staging_;
};

class CudaStagingRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CudaStagingRef, ffi::ObjectRef, CudaStagingObj);
};

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_CUDA_STAGING_H_
