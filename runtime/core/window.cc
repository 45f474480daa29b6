#include "runtime/core/window.h"

#include <algorithm>

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

// Whether the result of the pooling or convolution may have the size `output` along one axis. The
// size is the number of windows along this axis. Usually each window lies within the padded input.
// If the size may be rounded up, the last window may extend beyond the edge.
bool IsOutputSize(int64_t output, int64_t input, int64_t window, int64_t stride, int64_t dilation,
                  int64_t pad_begin, int64_t pad_end, bool may_round_up) {
  const int64_t room = input + pad_begin + pad_end - ((window - 1) * dilation + 1);
  if (room < 0) return false;
  if (output == room / stride + 1) return true;
  // Even if the output's size is rounded up, each window must begin in the input or in the padding
  // before the input.
  return may_round_up && output == (room + stride - 1) / stride + 1 &&
         (output - 1) * stride < input + pad_begin;
}

}  // namespace

std::string Window::WhyWrong(const std::vector<int64_t>& input, const std::vector<int64_t>& output,
                             bool may_round_up) const {
  if (size.size() != 2 || strides.size() != 2 || dilation.size() != 2 || padding.size() != 4) {
    return "needs two numbers each for window, strides and dilation, and four for padding";
  }
  for (const auto* positive : {&size, &strides, &dilation}) {
    if (*std::min_element(positive->begin(), positive->end()) < 1) {
      return "has a window, stride or dilation below 1";
    }
  }
  if (*std::min_element(padding.begin(), padding.end()) < 0) return "has negative padding";
  for (int axis : {0, 1}) {
    if (!IsOutputSize(output[2 + axis], input[2 + axis], size[axis], strides[axis], dilation[axis],
                      padding[axis], padding[2 + axis], may_round_up)) {
      return "cannot make " + Text(output) + " of " + Text(input);
    }
  }
  return "";
}

std::string WhyNoPooling(const Window& window, const std::vector<int64_t>& data,
                         const std::vector<int64_t>& output) {
  if (data[0] != output[0] || data[1] != output[1]) {
    return "cannot make " + Text(output) + " of " + Text(data);
  }
  return window.WhyWrong(data, output, true);
}

}  // namespace tvm_interop
