// Makes CUDA modules in the form in which TVM saves them, on machines without a CUDA driver. TVM's
// own CUDA runtime does not load there.

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;

// A CUDA module that is saved like TVM's own. TVM loads it later on a machine with CUDA; it is
// never run here.
class SavedCudaModule : public ffi::ModuleObj {
 public:
  explicit SavedCudaModule(std::string saved) : saved_(std::move(saved)) {}

  const char* kind() const override { return "cuda"; }
  int GetPropertyMask() const override { return ffi::Module::kBinarySerializable; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) override { return std::nullopt; }
  ffi::Bytes SaveToBytes() const override { return ffi::Bytes(saved_); }

 private:
  std::string saved_;
};

// Returns a string as TVM's streams write it: the length in eight bytes, followed by the
// characters.
std::string Written(const std::string& text) {
  const uint64_t size = text.size();
  std::string written(sizeof(size), '\0');
  std::memcpy(written.data(), &size, sizeof(size));
  return written + text;
}

// Replaces the source code in a saved CUDA module by the binary compiled from it. TVM saves the
// format of the code, a table of kernels, and the code. The table is copied unchanged.
ffi::Module WithBinary(const ffi::Module& module, const ffi::Bytes& source,
                       const ffi::Bytes& binary) {
  const ffi::Bytes bytes = module->SaveToBytes();
  const std::string saved(bytes.data(), bytes.size());
  const std::string head = Written("cuda");
  const std::string tail = Written(std::string(source.data(), source.size()));
  const bool has_both = saved.size() >= head.size() + tail.size() &&
                        saved.compare(0, head.size(), head) == 0 &&
                        saved.compare(saved.size() - tail.size(), tail.size(), tail) == 0;
  if (!has_both) {
    TVM_FFI_THROW(DeviceError) << "this TVM saves CUDA modules in another form than 0.27 does; "
                                  "install apache-tvm 0.27";
  }
  const std::string table = saved.substr(head.size(), saved.size() - head.size() - tail.size());
  // TVM uses the name `cubin` for any binary that the driver loads, including a fatbin.
  return ffi::Module(ffi::make_object<SavedCudaModule>(
      Written("cubin") + table + Written(std::string(binary.data(), binary.size()))));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_interop.cuda.with_binary", WithBinary);
}

}  // namespace
}  // namespace tvm_interop
