#ifndef RUNTIME_CPU_ONEDNN_KINDS_H_
#define RUNTIME_CPU_ONEDNN_KINDS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {

// The functions that check and make oneDNN's kernels for one kind of operator.
struct KindOfKernels {
  // Returns why oneDNN cannot compute a well-formed operator, or an empty string if it can. The
  // text does not name the operator.
  std::string (*why_not)(const OpDescription& op);
  std::unique_ptr<Maker> (*maker)(const Api& api, Engine engine, const OpDescription& op,
                                  int threads, const std::vector<KernelArgument>& args);
};

// The kinds that oneDNN has kernels for, by the name of the kind.
std::map<std::string, KindOfKernels>& Kernels();

// Registers the maker of kernels for a kind. The file of each kind has one such object, of static
// lifetime.
template <typename KindMaker>
class RegisteredMaker {
 public:
  RegisteredMaker(const char* kind, std::string (*why_not)(const OpDescription& op)) {
    Kernels()[kind] = {why_not, [](const Api& api, Engine engine, const OpDescription& op,
                                   int threads, const std::vector<KernelArgument>& args) {
                         return std::unique_ptr<Maker>(
                             std::make_unique<KindMaker>(api, engine, op, threads, args));
                       }};
  }
};

// Whether an operator computes sums of products. The numbers that such an operator multiplies may
// be rounded to bfloat16.
enum class Multiplies { kNo, kYes };

// Returns why oneDNN does not support the types of a floating-point operator, or an empty string if
// it does. Tensors may be float32 or bfloat16, but the arguments whose indices are in `wide` must
// be float32.
std::string WhyNotFloats(const OpDescription& op, Multiplies multiplies,
                         const std::vector<size_t>& wide);

// The next two functions check types as `WhyNotFloats` does, but for operators on 8-bit integers.
// `WhyNotIntegers` is for operators that multiply integers. `WhyNotMovedIntegers` is for operators
// that only move or pool integers.
std::string WhyNotIntegers(const OpDescription& op);
std::string WhyNotMovedIntegers(const OpDescription& op);

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_KINDS_H_
