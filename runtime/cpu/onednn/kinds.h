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

// What oneDNN can do for operators of one kind.
struct KindOfKernels {
  // Why it cannot compute a well-formed operator, without its name; empty where it can.
  std::string (*why_not)(const OpDescription& op);
  std::unique_ptr<Maker> (*maker)(const Api& api, Engine engine, const OpDescription& op,
                                  int threads, const std::vector<KernelArgument>& args);
};

// By kind.
std::map<std::string, KindOfKernels>& Kernels();

// Registers what makes kernels of a kind, as an object of static lifetime in the kind's file.
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

// Whether an operator multiplies factors, which may be rounded to bfloat16.
enum class Multiplies { kNo, kYes };

// Why the types of an operator on floats are none that oneDNN has. Tensors may be of bfloat16, but
// for `wide`, arguments that are of float32.
std::string WhyNotFloats(const OpDescription& op, Multiplies multiplies,
                         const std::vector<size_t>& wide);

// The same of products of integers, and of what only moves or pools them.
std::string WhyNotIntegers(const OpDescription& op);
std::string WhyNotMovedIntegers(const OpDescription& op);

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_KINDS_H_
