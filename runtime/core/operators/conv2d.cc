#include "runtime/core/operators/conv2d.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Conv2d> kRegistered("conv2d");

}  // namespace

std::string Conv2d::WhyWrong() const {
  return WhyNoConvolution(window, groups, shapes[0], shapes[1],
                          ending.has_bias ? &shapes[2] : nullptr, shapes.back());
}

void Conv2d::VisitFields(Fields* fields) {
  window.Visit(fields);
  fields->Visit("groups", &groups);
  ending.Visit(fields);
  fields->Visit("allow_tf32", &allow_tf32);
}

std::string WhyNoConvolution(const Window& window, int64_t groups, const std::vector<int64_t>& data,
                             const std::vector<int64_t>& weight, const std::vector<int64_t>* bias,
                             const std::vector<int64_t>& output) {
  if (data.size() != 4 || weight.size() != 4 || output.size() != 4) {
    return "needs data, weight and output of four dimensions";
  }
  if (groups < 1 || data[1] % groups != 0 || weight[0] % groups != 0 ||
      weight[1] * groups != data[1] || output[1] != weight[0] || output[0] != data[0]) {
    return "cannot make " + Text(output) + " of " + Text(data) + " with a weight of " +
           Text(weight) + " in " + std::to_string(groups) + " groups";
  }
  if (window.size != std::vector<int64_t>(weight.begin() + 2, weight.end())) {
    return "has a window " + Text(window.size) + " that is not its weight's";
  }
  if (bias != nullptr && NumElements(*bias) != weight[0]) {
    return "needs a bias of " + std::to_string(weight[0]) + " numbers";
  }
  return window.WhyWrong(data, output, false);
}

}  // namespace tvm_interop
