// Bindings that let Python load kernel libraries for GPUs, such as cuDNN, and prepare their
// kernels.

#include "runtime/ffi/cuda_library.h"

#include <tvm/ffi/reflection/registry.h>

#include <stdexcept>
#include <string>

#include "runtime/cuda/workspace_limit.h"
#include "runtime/ffi/guarded_cuda.h"
#include "runtime/ffi/op_description.h"

namespace tvm_interop {

namespace refl = tvm::ffi::reflection;

CudaLibraryKernelObj::CudaLibraryKernelObj(CudaKernelLibrary* library, const OpDescription& op,
                                           const std::shared_ptr<CudaStreams>& streams, int stream,
                                           const ffi::Array<ffi::Tensor>& tensors)
    : tensors_(tensors.begin(), tensors.end()) {
  std::vector<void*> addresses;
  for (const ffi::Tensor& tensor : tensors_) addresses.push_back(tensor.data_ptr());
  const CudaStreams::Lease lease(streams.get());
  streams->Settle();
  kernel_ = library->Prepare(op, streams->stream(stream), addresses);
}

namespace {

CudaLibraryKernelRef Prepare(const std::string& name, const Description& description,
                             const CudaStreamsRef& streams, int64_t stream,
                             const ffi::Array<ffi::Tensor>& tensors) {
  return GuardedCuda([&] {
    CudaKernelLibrary* library = FindCudaKernelLibrary(name);
    if (library == nullptr) {
      throw std::runtime_error("kernel library `" + name + "` is not loaded");
    }
    return CudaLibraryKernelRef(ffi::make_object<CudaLibraryKernelObj>(
        library, *ToOpDescription(description), streams->streams, static_cast<int>(stream),
        tensors));
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<CudaLibraryKernelObj>();
  refl::GlobalDef()
      .def("tvm_interop.cuda.load_kernel_library",
           [](const std::string& name, const std::string& path) {
             return GuardedCuda([&] { return LoadCudaKernelLibrary(name, path).version(); });
           })
      .def("tvm_interop.cuda.why_unsupported",
           [](const std::string& name, const Description& description) {
             return GuardedCuda([&] {
               return WhyUnsupportedBy(description, [&](const OpDescription& op) {
                 return WhyUnsupportedOnCuda(name, op);
               });
             });
           })
      .def("tvm_interop.cuda.prepare_kernel", Prepare)
      .def("tvm_interop.cuda.workspace_limit",
           [] { return static_cast<int64_t>(WorkspaceLimit()); })
      .def("tvm_interop.cuda.set_workspace_limit",
           [](int64_t nbytes) { SetWorkspaceLimit(static_cast<size_t>(nbytes)); })
      .def("tvm_interop.cuda.implementation",
           [](const CudaLibraryKernelRef& kernel) { return kernel->kernel()->implementation(); });
}

}  // namespace
}  // namespace tvm_interop
