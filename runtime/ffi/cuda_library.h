#ifndef RUNTIME_FFI_CUDA_LIBRARY_H_
#define RUNTIME_FFI_CUDA_LIBRARY_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/object.h>

#include <memory>
#include <vector>

#include "runtime/cuda/kernel_library.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

namespace ffi = tvm::ffi;

class CudaStreamsObj : public ffi::Object {
 public:
  explicit CudaStreamsObj(const std::vector<CudaStreamOptions>& options)
      : streams(std::make_shared<CudaStreams>(options)) {}

  std::shared_ptr<CudaStreams> streams;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CudaStreams", CudaStreamsObj, ffi::Object);
};

class CudaStreamsRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CudaStreamsRef, ffi::ObjectRef, CudaStreamsObj);
};

// A library's kernel for a GPU, and the tensors that the kernel reads and writes.
class CudaLibraryKernelObj : public ffi::Object {
 public:
  CudaLibraryKernelObj(CudaKernelLibrary* library, const OpDescription& op,
                       const std::shared_ptr<CudaStreams>& streams, int stream,
                       const ffi::Array<ffi::Tensor>& tensors);

  CudaLibraryKernel* kernel() const { return kernel_.get(); }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CudaLibraryKernel", CudaLibraryKernelObj,
                                    ffi::Object);

 private:
  std::vector<ffi::Tensor> tensors_;  // Keeps the memory of the tensors alive.
  std::unique_ptr<CudaLibraryKernel> kernel_;
};

class CudaLibraryKernelRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CudaLibraryKernelRef, ffi::ObjectRef,
                                             CudaLibraryKernelObj);
};

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_CUDA_LIBRARY_H_
