// What a server of TVM's RPC does for us once it has loaded this library: it measures stages.
// Programs and requests come as JSON, which is among the few things that its protocol carries.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

using Dict = ffi::Map<ffi::String, ffi::Any>;
using List = ffi::Array<ffi::Any>;

// What TVM's code generator asks of a tensor's address.
constexpr size_t kAlignment = 64;

struct AlignedAlloc {
  void AllocData(DLTensor* tensor) {
    const size_t size = (ffi::GetDataSize(*tensor) / kAlignment + 1) * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, size);
    if (tensor->data == nullptr) throw std::bad_alloc();
    std::memset(tensor->data, 0, size);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

// Zeros are valid indices; floats get values of a model's usual size, none of them denormal.
ffi::Tensor MakeTensor(const List& described, std::mt19937* random) {
  const auto dims = described[1].cast<ffi::Array<int64_t>>();
  const ffi::Shape shape(dims.begin(), dims.end());
  const DLDataType dtype = ffi::StringToDLDataType(described[0].cast<ffi::String>());
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedAlloc(), shape, dtype, DLDevice{kDLCPU, 0});
  if (dtype.code == kDLFloat && dtype.bits == 32) {
    std::normal_distribution<float> normal;
    auto* values = static_cast<float*>(tensor.data_ptr());
    for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = normal(*random);
  }
  return tensor;
}

template <typename... Args>
ffi::Any Runtime(const char* name, Args&&... args) {
  static std::map<std::string, ffi::Function> found;
  const auto [at, is_new] = found.try_emplace(name);
  if (is_new) {
    at->second = ffi::Function::GetGlobalRequired(std::string("tvm_interop.runtime.") + name);
  }
  return at->second(std::forward<Args>(args)...);
}

// The operators of a model, with memory of their own for every tensor.
class FarmProgramObj : public ffi::Object {
 public:
  // {"streams", "threads", "parallel_kernels", "values": [[type, shape]], "operators": [[kernel,
  // [values], [share, of how many] or []]]}, and the file of the kernels.
  FarmProgramObj(const Dict& program, const ffi::String& kernels)
      : module_(ffi::Module::LoadFromFile(kernels)) {
    Runtime("take_over_parallel_loops", std::string(kernels));
    num_streams_ = program.at("streams").cast<int64_t>();
    streams_ = Runtime("make_cpu_streams", num_streams_, program.at("threads").cast<int64_t>(),
                       program.at("parallel_kernels").cast<bool>(), 50.0);
    std::mt19937 random(0);
    for (const auto& value : program.at("values").cast<List>()) {
      tensors_.push_back(MakeTensor(value.cast<List>(), &random));
    }
    for (const auto& op : program.at("operators").cast<List>()) {
      const auto described = op.cast<List>();
      const auto name = described[0].cast<ffi::String>();
      const auto function = module_->GetFunction(name, true);
      if (!function.has_value()) TVM_FFI_THROW(ExecutionError) << "there is no kernel " << name;
      kernels_.push_back(*function);
      names_.push_back(name);
      args_.push_back(described[1].cast<ffi::Array<int64_t>>());
      shares_.push_back(described[2].cast<ffi::Array<int64_t>>());
    }
  }

  // For each stage, a list of the operators of each stream, its times in seconds.
  ffi::String Measure(const List& stages, int64_t warmup, int64_t repeats, int64_t seed) const {
    ffi::Array<ffi::Any> executors;
    for (const auto& stage : stages) executors.push_back(MakeExecutor(stage.cast<List>()));
    const auto seconds = Runtime("measure_interleaved", executors, warmup, repeats, seed);
    return ffi::json::Stringify(seconds);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.FarmProgram", FarmProgramObj, ffi::Object);

 private:
  ffi::Any MakeExecutor(const List& stage) const {
    ffi::Array<ffi::String> names;
    ffi::Array<ffi::Any> kernels;
    ffi::Array<ffi::Array<int64_t>> args;
    ffi::Array<int64_t> stream_of;
    ffi::Array<ffi::Array<int64_t>> waits;
    ffi::Array<ffi::Array<int64_t>> shares;
    for (size_t s = 0; s < stage.size(); ++s) {
      for (const int64_t op : stage[s].cast<ffi::Array<int64_t>>()) {
        names.push_back(names_[op]);
        kernels.push_back(kernels_[op]);
        args.push_back(args_[op]);
        stream_of.push_back(static_cast<int64_t>(s));
        waits.push_back({});
        shares.push_back(shares_[op]);
      }
    }
    return Runtime("make_executor", streams_, tensors_, names, kernels, args, stream_of, waits,
                   shares);
  }

  int64_t num_streams_ = 0;
  ffi::Any streams_;
  ffi::Module module_;
  ffi::Array<ffi::Tensor> tensors_;
  ffi::Array<ffi::String> names_;
  ffi::Array<ffi::Any> kernels_;
  ffi::Array<ffi::Array<int64_t>> args_;
  ffi::Array<ffi::Array<int64_t>> shares_;
};

class FarmProgramRef : public ffi::ObjectRef {
 public:
  FarmProgramRef(const ffi::String& program, const ffi::String& kernels) {
    data_ = ffi::make_object<FarmProgramObj>(ffi::json::Parse(program).cast<Dict>(), kernels);
  }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(FarmProgramRef, ffi::ObjectRef, FarmProgramObj);
};

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<FarmProgramObj>();
  refl::GlobalDef()
      .def("tvm_interop.farm.open",
           [](const ffi::String& program, const ffi::String& kernels) {
             return FarmProgramRef(program, kernels);
           })
      .def("tvm_interop.farm.measure", [](const FarmProgramRef& program, const ffi::String& stages,
                                          int64_t warmup, int64_t repeats, int64_t seed) {
        return program->Measure(ffi::json::Parse(stages).cast<List>(), warmup, repeats, seed);
      });
}

}  // namespace
}  // namespace tvm_interop
