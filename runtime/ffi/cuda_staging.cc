// Bindings that let Python copy tensors between the host and GPUs.

#include "runtime/ffi/cuda_staging.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>

#include <memory>
#include <utility>
#include <vector>

#include "runtime/ffi/guarded_cuda.h"

namespace tvm_interop {

namespace refl = tvm::ffi::reflection;

CudaStagingObj::CudaStagingObj(const CudaStreamsRef& streams,
                               const ffi::Array<ffi::Array<ffi::Tensor>>& ports)
    : ports_(ports) {
  std::vector<CudaStaging::Port> made;
  for (const ffi::Array<ffi::Tensor>& tensors : ports) {
    CudaStaging::Port port{{}, ffi::GetDataSize(tensors[0])};
    for (const ffi::Tensor& tensor : tensors) {
      CheckSameSize(tensors[0], tensor);
      port.places.push_back({tensor.device().device_id, tensor.data_ptr()});
    }
    made.push_back(std::move(port));
  }
  staging_ = std::make_unique<CudaStaging>(streams->streams, std::move(made));
}

namespace {

class CudaLoaderObj : public ffi::Object {
 public:
  explicit CudaLoaderObj(const CudaStreamsRef& streams) : loader(streams->streams) {}

  CudaLoader loader;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CudaLoader", CudaLoaderObj, ffi::Object);
};

class CudaLoaderRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CudaLoaderRef, ffi::ObjectRef, CudaLoaderObj);
};

void Load(const CudaLoaderRef& loader, const ffi::Tensor& host, const ffi::Tensor& device) {
  CheckSameSize(host, device);
  GuardedCuda([&] {
    loader->loader.ToDevice(device.device().device_id, device.data_ptr(), host.data_ptr(),
                            ffi::GetDataSize(host));
  });
}

void Unload(const CudaLoaderRef& loader, const ffi::Tensor& device, const ffi::Tensor& host) {
  CheckSameSize(host, device);
  GuardedCuda([&] {
    loader->loader.ToHost(device.device().device_id, host.data_ptr(), device.data_ptr(),
                          ffi::GetDataSize(host));
  });
}

// When the work on tvm-ffi's current stream is done, `source` is ready. This holds for a tensor of
// TVM. It also holds for a tensor of another library, because DLPack has made this stream wait for
// that library's work.
void CopyOnDeviceFromPython(const CudaStreamsRef& streams, const ffi::Tensor& source,
                            const ffi::Array<ffi::Tensor>& targets) {
  std::vector<void*> addresses;
  for (const ffi::Tensor& target : targets) {
    CheckSameSize(source, target);
    addresses.push_back(target.data_ptr());
  }
  GuardedCuda([&] {
    const int device = source.device().device_id;
    auto* producer = static_cast<cuda::Stream>(TVMFFIEnvGetStream(kDLCUDA, device));
    CopyOnDevice(streams->streams.get(), device, addresses, source.data_ptr(),
                 ffi::GetDataSize(source), producer);
  });
}

int64_t StreamHandle(const CudaStreamsRef& streams, int64_t device) {
  return GuardedCuda([&] {
    const CudaStream stream = streams->streams->first_on(static_cast<int>(device));
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(stream.handle));
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<CudaStagingObj>();
  refl::ObjectDef<CudaLoaderObj>();
  refl::GlobalDef()
      .def("tvm_interop.cuda.make_staging",
           [](const CudaStreamsRef& streams, const ffi::Array<ffi::Array<ffi::Tensor>>& ports) {
             return GuardedCuda(
                 [&] { return CudaStagingRef(ffi::make_object<CudaStagingObj>(streams, ports)); });
           })
      .def(
          "tvm_interop.cuda.stage",
          [](const CudaStagingRef& staging, int64_t port, const ffi::Tensor& host) {
            staging->CheckSizeOf(port, host);
            GuardedCuda([&] { staging->get()->Write(static_cast<size_t>(port), host.data_ptr()); });
          })
      .def("tvm_interop.cuda.fetch",
           [](const CudaStagingRef& staging, int64_t port) {
             GuardedCuda([&] { staging->get()->FetchAlone(static_cast<size_t>(port)); });
           })
      .def("tvm_interop.cuda.take",
           [](const CudaStagingRef& staging, int64_t port, const ffi::Tensor& host) {
             staging->CheckSizeOf(port, host);
             GuardedCuda([&] { staging->get()->Take(static_cast<size_t>(port), host.data_ptr()); });
           })
      .def("tvm_interop.cuda.make_loader",
           [](const CudaStreamsRef& streams) {
             return GuardedCuda(
                 [&] { return CudaLoaderRef(ffi::make_object<CudaLoaderObj>(streams)); });
           })
      .def("tvm_interop.cuda.load", Load)
      .def("tvm_interop.cuda.unload", Unload)
      .def("tvm_interop.cuda.copy_on_device", CopyOnDeviceFromPython)
      .def("tvm_interop.cuda.stream_handle", StreamHandle)
      .def("tvm_interop.cuda.order_after",
           [](const CudaStreamsRef& streams, int64_t device, int64_t consumer) {
             GuardedCuda([&] {
               OrderAfter(streams->streams.get(), static_cast<int>(device),
                          reinterpret_cast<cuda::Stream>(static_cast<intptr_t>(consumer)));
             });
           });
}

}  // namespace
}  // namespace tvm_interop
