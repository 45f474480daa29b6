#include "runtime/ffi/op_description.h"

#include <tvm/ffi/container/array.h>

#include <map>
#include <string>
#include <vector>

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;

std::vector<int64_t> Integers(const Description& description, const char* key) {
  const auto array = description.at(key).cast<ffi::Array<int64_t>>();
  return {array.begin(), array.end()};
}

}  // namespace

OpDescription ToOpDescription(const Description& from) {
  static const std::map<std::string, Layout> layouts{{"plain", Layout::kPlain},
                                                     {"blocked16", Layout::kBlocked16}};
  static const std::map<std::string, Activation> activations{
      {"none", Activation::kNone},           {"relu", Activation::kRelu},
      {"clip", Activation::kClip},           {"sigmoid", Activation::kSigmoid},
      {"tanh", Activation::kTanh},           {"swish", Activation::kSwish},
      {"hardswish", Activation::kHardSwish}, {"hardsigmoid", Activation::kHardSigmoid},
      {"gelu", Activation::kGelu},           {"gelu_tanh", Activation::kGeluTanh}};
  static const std::map<std::string, DataType> types{
      {"float32", DataType::kFloat32},   {"float16", DataType::kFloat16},
      {"bfloat16", DataType::kBfloat16}, {"int8", DataType::kInt8},
      {"uint8", DataType::kUint8},       {"int32", DataType::kInt32}};
  OpDescription to;
  to.op = from.at("op").cast<std::string>();
  for (const auto& shape : from.at("shapes").cast<ffi::Array<ffi::Array<int64_t>>>()) {
    to.shapes.emplace_back(shape.begin(), shape.end());
  }
  for (const auto& layout : from.at("layouts").cast<ffi::Array<ffi::String>>()) {
    to.layouts.push_back(layouts.at(layout));
  }
  to.dtype = types.at(from.at("dtype").cast<std::string>());
  // Left out by callers from before there were types of single tensors.
  if (from.count("stored") > 0) {
    for (const auto& type : from.at("stored").cast<ffi::Array<ffi::String>>()) {
      to.stored.push_back(types.at(type));
    }
  }
  to.allow_tf32 = from.at("allow_tf32").cast<bool>();
  to.window = Integers(from, "window");
  to.strides = Integers(from, "strides");
  to.padding = Integers(from, "padding");
  to.dilation = Integers(from, "dilation");
  to.groups = from.at("groups").cast<int64_t>();
  to.has_bias = from.at("has_bias").cast<bool>();
  to.has_sum = from.at("has_sum").cast<bool>();
  to.activation = activations.at(from.at("activation").cast<std::string>());
  to.clip_low = static_cast<float>(from.at("clip_low").cast<double>());
  to.clip_high = static_cast<float>(from.at("clip_high").cast<double>());
  to.counts_padding = from.at("counts_padding").cast<bool>();
  to.lrn_size = from.at("lrn_size").cast<int64_t>();
  to.lrn_alpha = static_cast<float>(from.at("lrn_alpha").cast<double>());
  to.lrn_beta = static_cast<float>(from.at("lrn_beta").cast<double>());
  to.lrn_bias = static_cast<float>(from.at("lrn_bias").cast<double>());
  to.data_zero = from.at("data_zero").cast<int64_t>();
  to.weight_zero = from.at("weight_zero").cast<int64_t>();
  to.cut = Integers(from, "cut");
  // Left out by callers from before there were any.
  if (from.count("steps") > 0) {
    const std::map<std::string, StepKind> kinds{{"clip", StepKind::kClip},
                                                {"round", StepKind::kRound},
                                                {"linear", StepKind::kLinear},
                                                {"add_tensor", StepKind::kAddTensor}};
    for (const auto& step : from.at("steps").cast<ffi::Array<ffi::Array<ffi::Any>>>()) {
      to.steps.push_back({kinds.at(step[0].cast<std::string>()),
                          static_cast<float>(step[1].cast<double>()),
                          static_cast<float>(step[2].cast<double>())});
    }
  }
  to.epsilon = static_cast<float>(from.at("epsilon").cast<double>());
  return to;
}

}  // namespace tvm_interop
