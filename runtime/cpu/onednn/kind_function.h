#ifndef RUNTIME_CPU_ONEDNN_KIND_FUNCTION_H_
#define RUNTIME_CPU_ONEDNN_KIND_FUNCTION_H_

#include <cstddef>

#include "runtime/cpu/onednn/api.h"

namespace tvm_interop {
namespace onednn {

// A function of oneDNN that only the kernels of one kind call. The file of the kind declares the
// function as an object of this class, so `api.h` does not change for a new kind. The objects have
// static lifetime. They register the names of their functions, and `Api::Load` finds the functions.
template <typename Signature>
class KindFunction;

template <typename Result, typename... Args>
class KindFunction<Result(Args...)> {
 public:
  explicit KindFunction(const char* name) : index_(KindFunctionNames().size()) {
    KindFunctionNames().push_back(name);
  }

  Result operator()(const Api& api, Args... args) const {
    return reinterpret_cast<Result (*)(Args...)>(api.of_kinds[index_])(args...);
  }

 private:
  size_t index_;
};

// In most builds the next two macros are empty. The test `vendor_headers_test` compiles the files
// in `kinds/` once more, with its own definition of the macros. They then compare our declarations
// with oneDNN's header.
#ifndef TVM_INTEROP_SAME_FUNCTION
#define TVM_INTEROP_SAME_FUNCTION(signature, theirs)
#define TVM_INTEROP_SAME_NUMBER(ours, theirs)
#endif

// Declares the function `name`. In oneDNN's header its name has the prefix `dnnl_`. Its first
// argument is the `Api`, and oneDNN's own arguments follow.
#define TVM_INTEROP_ONEDNN_FUNCTION(result, name, args) \
  const KindFunction<result args> name("dnnl_" #name);  \
  TVM_INTEROP_SAME_FUNCTION(result args, dnnl_##name)

// Declares the number `name`. In oneDNN's header the same number is called `theirs`, with the
// prefix `dnnl_`.
#define TVM_INTEROP_ONEDNN_NUMBER(name, value, theirs) \
  constexpr int name = value;                          \
  TVM_INTEROP_SAME_NUMBER(name, dnnl_##theirs)

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_KIND_FUNCTION_H_
