#include "runtime/core/names.h"

#include <algorithm>

namespace tvm_interop {

const std::map<std::string, Activation>& Activations() {
  static const std::map<std::string, Activation> names{
      {"none", Activation::kNone},           {"relu", Activation::kRelu},
      {"clip", Activation::kClip},           {"sigmoid", Activation::kSigmoid},
      {"tanh", Activation::kTanh},           {"swish", Activation::kSwish},
      {"hardswish", Activation::kHardSwish}, {"hardsigmoid", Activation::kHardSigmoid},
      {"gelu", Activation::kGelu},           {"gelu_tanh", Activation::kGeluTanh}};
  return names;
}

const std::map<std::string, StepKind>& StepKinds() {
  static const std::map<std::string, StepKind> names{{"clip", StepKind::kClip},
                                                     {"round", StepKind::kRound},
                                                     {"linear", StepKind::kLinear},
                                                     {"add_tensor", StepKind::kAddTensor}};
  return names;
}

const std::map<std::string, Layout>& Layouts() {
  static const std::map<std::string, Layout> names{{"plain", Layout::kPlain},
                                                   {"blocked8", Layout::kBlocked8},
                                                   {"blocked16", Layout::kBlocked16}};
  return names;
}

const std::string& NameOf(Layout layout) {
  const auto has_name = [layout](const auto& named) { return named.second == layout; };
  return std::find_if(Layouts().begin(), Layouts().end(), has_name)->first;
}

}  // namespace tvm_interop
