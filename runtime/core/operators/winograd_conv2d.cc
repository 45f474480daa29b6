#include "runtime/core/operators/winograd_conv2d.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<WinogradConv2d> kRegistered("winograd_conv2d");

}  // namespace

std::string WinogradConv2d::WhyWrong() const {
  const std::string wrong = Conv2d::WhyWrong();
  if (!wrong.empty()) return wrong;
  if (window.size != std::vector<int64_t>{3, 3} || window.strides != std::vector<int64_t>{1, 1} ||
      groups != 1) {
    return "needs a window [3, 3], strides [1, 1] and 1 group, and has " + Text(window.size) +
           ", " + Text(window.strides) + " and " + std::to_string(groups);
  }
  return "";
}

}  // namespace tvm_interop
