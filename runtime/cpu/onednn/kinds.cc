#include "runtime/cpu/onednn/kinds.h"

namespace tvm_interop {
namespace onednn {
namespace {

using Type = tvm_interop::DataType;

bool IsByte(const OpDescription& op, size_t argument) {
  const Type type = op.stored_type(argument);
  return type == Type::kInt8 || type == Type::kUint8;
}

}  // namespace

std::map<std::string, KindOfKernels>& Kernels() {
  static auto* const kernels = new std::map<std::string, KindOfKernels>;
  return *kernels;
}

std::string WhyNotFloats(const OpDescription& op, Multiplies multiplies,
                         const std::vector<size_t>& wide) {
  if (op.dtype != Type::kFloat32 && op.dtype != Type::kBfloat16) {
    return "is not of float32 or bfloat16";
  }
  if (op.dtype == Type::kBfloat16 && multiplies == Multiplies::kNo) {
    return "has no factors to round";
  }
  for (size_t i = 0; i < op.shapes.size(); ++i) {
    const Type type = op.stored_type(i);
    if (type != Type::kFloat32 && type != Type::kBfloat16) {
      return "has a tensor of float16 or of integers";
    }
  }
  for (size_t i : wide) {
    if (op.stored_type(i) != Type::kFloat32) return "has a bias or scale that is not of float32";
  }
  return "";
}

std::string WhyNotIntegers(const OpDescription& op) {
  const size_t last = op.shapes.size() - 1;
  if (!IsByte(op, 0)) return "has data that is not of 8 bits";
  if (op.stored_type(1) != Type::kInt8) return "has a weight that is not int8";
  const bool adds = op.ends().has_sum;
  for (size_t i = 2; i < last - adds; ++i) {
    if (op.stored_type(i) != Type::kFloat32) return "has scales not of float32";
  }
  if (adds && !IsByte(op, last - 1)) return "adds a tensor that is not of 8 bits";
  const bool is_float = op.stored_type(last) == Type::kFloat32;
  return is_float || IsByte(op, last) ? "" : "has a result of another type";
}

std::string WhyNotMovedIntegers(const OpDescription& op) {
  if (!IsByte(op, 0)) return "has data that is not of 8 bits";
  return op.stored_type(0) == op.stored_type(1) ? "" : "changes the type";
}

}  // namespace onednn
}  // namespace tvm_interop
