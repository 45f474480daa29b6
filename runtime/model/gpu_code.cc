#include "runtime/model/gpu_code.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace tvm_interop {
namespace {

// The codes of DLPack's types.
enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kHandle = 3 };
struct Type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

// Reads numbers and texts as TVM's streams write them: a text or a list begins with its length, in
// eight bytes.
class Bytes {
 public:
  Bytes(const char* data, size_t nbytes) : at_(data), left_(nbytes) {}

  template <typename Number>
  Number Take() {
    Number number;
    std::memcpy(&number, Skip(sizeof(number)), sizeof(number));
    return number;
  }
  // Reads the length of a list, whose entries each take at least `least` bytes.
  size_t Count(size_t least) {
    const auto count = Take<uint64_t>();
    if (count > left_ / least) Refuse();
    return static_cast<size_t>(count);
  }
  std::string Text() {
    const size_t size = Count(1);
    const char* begin = Skip(size);
    return {begin, size};
  }

 private:
  [[noreturn]] static void Refuse() {
    throw std::runtime_error("the GPU code in the kernel library is cut off");
  }
  const char* Skip(size_t nbytes) {
    if (nbytes > left_) Refuse();
    const char* begin = at_;
    at_ += nbytes;
    left_ -= nbytes;
    return begin;
  }

  const char* at_;
  size_t left_;
};

GpuKernel::Parameter ParameterOf(const std::string& kernel, Type type) {
  const bool is_scalar = type.lanes == 1;
  const bool is_integer = type.code == kInt || type.code == kUint;
  if (is_scalar && type.code == kHandle) return GpuKernel::Parameter::kWhole;
  if (is_scalar && type.bits == 64 && type.code <= kFloat) return GpuKernel::Parameter::kWhole;
  if (is_scalar && type.bits == 32 && is_integer) return GpuKernel::Parameter::kInt32;
  if (is_scalar && type.bits == 32 && type.code == kFloat) return GpuKernel::Parameter::kFloat32;
  throw std::runtime_error("kernel `" + kernel + "` has a parameter of a type that is not known");
}

int DimensionOf(const std::string& kernel, const std::string& tag) {
  static constexpr std::array<const char*, GpuKernel::kNumDimensions> names{
      "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"};
  for (int i = 0; i < GpuKernel::kNumDimensions; ++i) {
    if (tag == names[i]) return i;
  }
  throw std::runtime_error("kernel `" + kernel + "` is launched in a way that is not known: `" +
                           tag + "`");
}

GpuKernel ReadKernel(Bytes* bytes, const std::string& name) {
  GpuKernel kernel;
  bytes->Text();  // The name again.
  const size_t num_parameters = bytes->Count(sizeof(Type));
  for (size_t i = 0; i < num_parameters; ++i) {
    kernel.parameters.push_back(ParameterOf(name, bytes->Take<Type>()));
  }
  const size_t num_tags = bytes->Count(sizeof(uint64_t));
  for (size_t i = 0; i < num_tags; ++i) {
    const std::string tag = bytes->Text();
    if (i + 1 == num_tags && tag == "tirx.use_dyn_shared_memory") {
      kernel.has_shared_bytes = true;
    } else {
      kernel.dimensions.push_back(DimensionOf(name, tag));
    }
  }
  const size_t num_extra = bytes->Count(sizeof(int32_t));
  for (size_t i = 0; i < num_extra; ++i) {
    if (bytes->Take<int32_t>() == 0) continue;
    throw std::runtime_error("kernel `" + name + "` takes a tensor map, which is not supported");
  }
  return kernel;
}

GpuCode ReadCuda(const std::string& saved) {
  Bytes bytes(saved.data(), saved.size());
  GpuCode read;
  const std::string format = bytes.Text();
  const size_t num_kernels = bytes.Count(sizeof(uint64_t));
  for (size_t i = 0; i < num_kernels; ++i) {
    const std::string name = bytes.Text();
    read.kernels[name] = ReadKernel(&bytes, name);
  }
  read.code = bytes.Text();
  if (format == "cuda") {
    throw std::runtime_error("the GPU code is source text, which would have to be compiled here");
  }
  return read;
}

}  // namespace

std::vector<GpuCode> ReadGpuCode(const char* data, size_t nbytes) {
  Bytes head(data, nbytes);
  const size_t size = head.Count(1);
  Bytes bytes(data + sizeof(uint64_t), size);
  // The tree of modules, in two lists. The first list says where the children of each module begin
  // in the second list.
  const size_t num_ends = bytes.Count(sizeof(uint64_t));
  for (size_t i = 0; i < num_ends; ++i) bytes.Take<uint64_t>();
  const size_t num_children = bytes.Count(sizeof(uint64_t));
  for (size_t i = 0; i < num_children; ++i) bytes.Take<uint64_t>();
  std::vector<GpuCode> found;
  for (size_t i = 0; i + 1 < num_ends; ++i) {
    const std::string kind = bytes.Text();
    if (kind == "_lib") continue;  // The library itself.
    if (kind != "cuda") {
      throw std::runtime_error("the kernel library holds a module of kind `" + kind +
                               "`, and only `cuda` is known");
    }
    found.push_back(ReadCuda(bytes.Text()));
  }
  return found;
}

}  // namespace tvm_interop
