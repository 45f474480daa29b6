#ifndef RUNTIME_FFI_BOUND_OPERATOR_H_
#define RUNTIME_FFI_BOUND_OPERATOR_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_interop {

// The share of a kernel that an operator runs: the share's index and the number of shares.
using Share = tvm::ffi::Tuple<int64_t, int64_t>;

// An operator as a tuple with the fields of Python's `_native.operators.BoundOperator`, in the same
// order.
using OperatorTuple = tvm::ffi::Tuple<tvm::ffi::String, tvm::ffi::Any, tvm::ffi::Array<int64_t>,
                                      int64_t, tvm::ffi::Array<int64_t>, tvm::ffi::Optional<Share>>;

// An operator with named fields. `args` are indices of the executor's tensors, and `waits` are
// indices of earlier operators.
struct BoundOperator {
  explicit BoundOperator(const OperatorTuple& from)
      : name(from.get<0>()),
        kernel(from.get<1>()),
        args(Numbers<int64_t>(from.get<2>())),
        stream(static_cast<int>(from.get<3>())),
        waits(Numbers<int>(from.get<4>())),
        share(from.get<5>()) {}

  std::string name;
  tvm::ffi::Any kernel;
  std::vector<int64_t> args;
  int stream;
  std::vector<int> waits;
  tvm::ffi::Optional<Share> share;

 private:
  template <typename Number>
  static std::vector<Number> Numbers(const tvm::ffi::Array<int64_t>& from) {
    std::vector<Number> numbers;
    for (int64_t number : from) numbers.push_back(static_cast<Number>(number));
    return numbers;
  }
};

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_BOUND_OPERATOR_H_
