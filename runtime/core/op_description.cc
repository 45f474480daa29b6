#include "runtime/core/op_description.h"

#include <algorithm>
#include <sstream>

namespace tvm_interop {
namespace {

const std::string kQuantised = "quantised_";

std::string Text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + ")";
}

int64_t NumElements(const std::vector<int64_t>& shape) {
  int64_t number = 1;
  for (int64_t dim : shape) number *= dim;
  return number;
}

// Height or width of what slides over the input: full steps, or one more that hangs over the edge
// where the output was rounded up.
bool IsOutputSize(int64_t output, int64_t input, int64_t window, int64_t stride, int64_t dilation,
                  int64_t pad_begin, int64_t pad_end, bool may_round_up) {
  const int64_t room = input + pad_begin + pad_end - ((window - 1) * dilation + 1);
  if (room < 0) return false;
  if (output == room / stride + 1) return true;
  // A window must begin in the input or before it.
  return may_round_up && output == (room + stride - 1) / stride + 1 &&
         (output - 1) * stride < input + pad_begin;
}

std::string CheckWindow(const OpDescription& op, bool may_round_up) {
  if (op.window.size() != 2 || op.strides.size() != 2 || op.dilation.size() != 2 ||
      op.padding.size() != 4) {
    return "needs two numbers each for window, strides and dilation, and four for padding";
  }
  for (const auto* positive : {&op.window, &op.strides, &op.dilation}) {
    if (*std::min_element(positive->begin(), positive->end()) < 1) {
      return "has a window, stride or dilation below 1";
    }
  }
  if (*std::min_element(op.padding.begin(), op.padding.end()) < 0) return "has negative padding";
  const auto& input = op.shapes.front();
  const auto& output = op.shapes.back();
  for (int axis : {0, 1}) {
    if (!IsOutputSize(output[2 + axis], input[2 + axis], op.window[axis], op.strides[axis],
                      op.dilation[axis], op.padding[axis], op.padding[2 + axis], may_round_up)) {
      return "cannot make " + Text(output) + " of " + Text(input);
    }
  }
  return "";
}

std::string CheckConv(const OpDescription& op) {
  const auto& data = op.shapes.front();
  const auto& weight = op.shapes[1];
  const auto& output = op.shapes.back();
  if (data.size() != 4 || weight.size() != 4 || output.size() != 4) {
    return "needs data, weight and output of four dimensions";
  }
  if (op.groups < 1 || data[1] % op.groups != 0 || weight[0] % op.groups != 0 ||
      weight[1] * op.groups != data[1] || output[1] != weight[0] || output[0] != data[0]) {
    return "cannot make " + Text(output) + " of " + Text(data) + " with a weight of " +
           Text(weight) + " in " + std::to_string(op.groups) + " groups";
  }
  if (op.window != std::vector<int64_t>(weight.begin() + 2, weight.end())) {
    return "has a window " + Text(op.window) + " that is not its weight's";
  }
  if (op.has_bias && NumElements(op.shapes[2]) != weight[0]) {
    return "needs a bias of " + std::to_string(weight[0]) + " numbers";
  }
  return CheckWindow(op, false);
}

std::string CheckPool(const OpDescription& op) {
  const auto& data = op.shapes.front();
  const auto& output = op.shapes.back();
  if (data.size() != 4 || output.size() != 4) return "needs data and output of four dimensions";
  if (data[0] != output[0] || data[1] != output[1]) {
    return "cannot make " + Text(output) + " of " + Text(data);
  }
  return CheckWindow(op, true);
}

std::string CheckLrn(const OpDescription& op) {
  if (op.shapes[0].size() != 4 || op.shapes[0] != op.shapes[1]) return "changes the shape";
  if (op.lrn_size < 1 || op.lrn_size % 2 == 0) {
    return "goes over " + std::to_string(op.lrn_size) + " channels; it takes an odd number";
  }
  return "";
}

std::string CheckMatmul(const OpDescription& op) {
  const auto& left = op.shapes.front();
  const auto& right = op.shapes[1];
  const auto& output = op.shapes.back();
  if (left.size() < 2 || right.size() < 2 || output.size() != left.size()) {
    return "needs matrices";
  }
  const int64_t k = left.back(), n = right.back();
  std::vector<int64_t> expected(left.begin(), left.end() - 1);
  expected.push_back(n);
  const bool same_batch =
      right.size() == 2 || std::vector<int64_t>(right.begin(), right.end() - 2) ==
                               std::vector<int64_t>(left.begin(), left.end() - 2);
  if (right[right.size() - 2] != k || output != expected || !same_batch) {
    return "cannot make " + Text(output) + " of " + Text(left) + " and " + Text(right);
  }
  if (op.has_bias && NumElements(op.shapes[2]) != n) {
    return "needs a bias of " + std::to_string(n) + " numbers";
  }
  return "";
}

std::string CheckScale(const OpDescription& op) {
  const auto& data = op.shapes.front();
  const auto& factor = op.shapes[1];
  if (data.size() != 4 || factor.size() != 4 || op.shapes.back() != data) {
    return "needs data, factor and output of four dimensions, and changes no shape";
  }
  const bool fits = (factor[0] == 1 || factor[0] == data[0]) && factor[1] == data[1] &&
                    factor[2] == 1 && factor[3] == 1;
  if (!fits) return "cannot scale the channels of " + Text(data) + " by " + Text(factor);
  if (op.has_bias && NumElements(op.shapes[2]) != data[1]) {
    return "needs a bias of " + std::to_string(data[1]) + " numbers";
  }
  return op.has_sum ? "adds no tensor" : "";
}

std::string CheckLayerNorm(const OpDescription& op) {
  const auto& data = op.shapes.front();
  if (data.size() < 2 || op.shapes.back() != data) return "changes the shape";
  for (int i : {1, 2}) {
    if (op.shapes[i] != std::vector<int64_t>{data.back()}) {
      return "needs a scale and a shift of " + std::to_string(data.back()) + " numbers";
    }
  }
  return op.epsilon >= 0 ? "" : "has a negative epsilon";
}

// Numbers of channels last, as N,C,H,W.
std::vector<int64_t> ChannelsFirst(const std::vector<int64_t>& shape) {
  return {shape[0], shape[3], shape[1], shape[2]};
}

std::string CheckQuantised(const OpDescription& op) {
  OpDescription of_floats = op;
  of_floats.op = op.op.substr(kQuantised.size());
  const bool is_pool = of_floats.op == "max_pool2d" || of_floats.op == "avg_pool2d";
  const auto added = std::count_if(op.steps.begin(), op.steps.end(), [](const Step& step) {
    return step.kind == StepKind::kAddTensor;
  });
  if (added != op.has_sum) return "has a tensor to add that no single step adds";
  if (of_floats.op != "matmul") {
    if (op.shapes.front().size() != 4 || op.shapes.back().size() != 4) {
      return "needs data and output of four dimensions";
    }
    of_floats.shapes.front() = ChannelsFirst(op.shapes.front());
    of_floats.shapes.back() = ChannelsFirst(op.shapes.back());
  }
  if (is_pool) return CheckPool(of_floats);
  of_floats.shapes.erase(of_floats.shapes.begin() + 2);
  if (NumElements(op.shapes[2]) != op.shapes.back().back()) {
    return "needs a scale of " + std::to_string(op.shapes.back().back()) + " numbers";
  }
  return of_floats.op == "conv2d" ? CheckConv(of_floats) : CheckMatmul(of_floats);
}

std::string CheckCut(const OpDescription& op) {
  if (op.cut.size() != 4) return "needs four numbers for what is cut out";
  const int64_t argument = op.cut[0], axis = op.cut[1], begin = op.cut[2], size = op.cut[3];
  const bool is_known =
      (op.op == "conv2d" && argument == 0 && axis == 2) ||
      (op.op == "quantised_conv2d" && argument == 0 && axis == 1 && op.shapes[0][0] == 1) ||
      (op.op == "matmul" && argument == 1 && axis == static_cast<int64_t>(op.shapes[1].size()) - 1);
  if (!is_known || op.layouts[argument] != Layout::kPlain) {
    return "cannot cut argument " + std::to_string(argument) + " along axis " +
           std::to_string(axis);
  }
  const int64_t taken = op.shapes[argument][axis];
  if (begin < 0 || taken > size || begin > size - taken) {
    return "cuts " + std::to_string(taken) + " from " + std::to_string(begin) + " on out of " +
           std::to_string(size);
  }
  return "";
}

// How many tensors an operator of this kind takes, its output included; 0 for no such kind.
size_t NumArguments(const OpDescription& op) {
  if (op.op == "scale") return 3 + op.has_bias + op.has_sum;
  if (op.op == "layer_norm") return 4;
  if (op.op == "quantised_conv2d" || op.op == "quantised_matmul") {
    return 4 + op.has_bias + op.has_sum;
  }
  if (op.op == "conv2d" || op.op == "matmul") return 3 + op.has_bias + op.has_sum;
  for (const char* unary : {"max_pool2d", "avg_pool2d", "lrn", "reorder", "softmax",
                            "quantised_max_pool2d", "quantised_avg_pool2d"}) {
    if (op.op == unary) return 2;
  }
  return 0;
}

}  // namespace

bool IsQuantised(const OpDescription& op) { return op.op.rfind(kQuantised, 0) == 0; }

std::string WhyMalformed(const OpDescription& op) {
  const size_t args = NumArguments(op);
  if (args == 0) return "`" + op.op + "` is no kind of operator";
  if (op.shapes.size() != args || op.layouts.size() != args) {
    return "`" + op.op + "` takes " + std::to_string(args) + " tensors, output included, not " +
           std::to_string(op.shapes.size());
  }
  if (!op.stored.empty() && op.stored.size() != args) {
    return "`" + op.op + "` has " + std::to_string(args) + " tensors, and types of " +
           std::to_string(op.stored.size());
  }
  for (size_t i = 0; i < args; ++i) {
    for (int64_t dim : op.shapes[i]) {
      if (dim < 1) return "`" + op.op + "` has an empty tensor";
    }
    if (op.layouts[i] == Layout::kBlocked16 && op.shapes[i].size() != 4) {
      return "`" + op.op + "` has a blocked tensor that is no image";
    }
  }
  if (op.has_sum && op.shapes[args - 2] != op.shapes.back()) {
    return "`" + op.op + "` adds a tensor of another shape than its output";
  }
  if (op.activation == Activation::kClip && !(op.clip_low <= op.clip_high)) {
    return "`" + op.op + "` clips to an empty range";
  }
  if (!op.steps.empty() && (!IsQuantised(op) || op.op == "quantised_max_pool2d")) {
    return "`" + op.op + "` has steps, which only quantised sums have";
  }
  for (const Step& step : op.steps) {
    if (step.kind == StepKind::kClip && !(step.a <= step.b)) {
      return "`" + op.op + "` has a step that clips to an empty range";
    }
  }
  std::string why;
  if (op.op == "conv2d") why = CheckConv(op);
  if (op.op == "matmul") why = CheckMatmul(op);
  if (op.op == "max_pool2d" || op.op == "avg_pool2d") why = CheckPool(op);
  if (op.op == "lrn") why = CheckLrn(op);
  if (op.op == "scale") why = CheckScale(op);
  if (op.op == "layer_norm") why = CheckLayerNorm(op);
  if (IsQuantised(op)) why = CheckQuantised(op);
  if ((op.op == "reorder" || op.op == "softmax") && op.shapes[0] != op.shapes[1]) {
    why = "changes the shape";
  }
  if (why.empty() && !op.cut.empty()) why = CheckCut(op);
  return why.empty() ? "" : "`" + op.op + "` " + why;
}

std::string Describe(const OpDescription& op) {
  std::ostringstream text;
  text << std::hexfloat << op.op;
  for (const auto& shape : op.shapes) text << ' ' << Text(shape);
  for (Layout layout : op.layouts) text << ' ' << static_cast<int>(layout);
  text << " stored";
  for (DataType type : op.stored) text << ' ' << static_cast<int>(type);
  for (const auto* numbers : {&op.window, &op.strides, &op.padding, &op.dilation, &op.cut}) {
    text << ' ' << Text(*numbers);
  }
  for (int64_t number :
       {static_cast<int64_t>(op.dtype), int64_t{op.allow_tf32}, op.groups, int64_t{op.has_bias},
        int64_t{op.has_sum}, static_cast<int64_t>(op.activation), int64_t{op.counts_padding},
        op.lrn_size, op.data_zero, op.weight_zero}) {
    text << ' ' << number;
  }
  for (float number :
       {op.clip_low, op.clip_high, op.lrn_alpha, op.lrn_beta, op.lrn_bias, op.epsilon}) {
    text << ' ' << number;
  }
  for (const Step& step : op.steps) {
    text << " step " << static_cast<int>(step.kind) << ' ' << step.a << ' ' << step.b;
  }
  return text.str();
}

}  // namespace tvm_interop
