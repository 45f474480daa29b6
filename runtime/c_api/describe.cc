#include "runtime/c_api/describe.h"

#include <map>
#include <string>

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

tvi_type TypeOf(const PlannedValue& value) {
  static const std::map<std::string, tvi_type> types{
      {"bool", TVI_BOOL},        {"int8", TVI_INT8},       {"int16", TVI_INT16},
      {"int32", TVI_INT32},      {"int64", TVI_INT64},     {"uint8", TVI_UINT8},
      {"uint16", TVI_UINT16},    {"uint32", TVI_UINT32},   {"uint64", TVI_UINT64},
      {"float16", TVI_FLOAT16},  {"float32", TVI_FLOAT32}, {"float64", TVI_FLOAT64},
      {"bfloat16", TVI_BFLOAT16}};
  return types.at(value.dtype);
}

}  // namespace

std::vector<tvi_tensor_info> Describe(const Plan& plan, const std::vector<int64_t>& values,
                                      size_t number) {
  std::vector<tvi_tensor_info> described;
  for (size_t i = 0; i < number; ++i) {
    const PlannedValue& value = plan.values[values[i]];
    described.push_back({value.name.c_str(), TypeOf(value),
                         static_cast<int32_t>(value.shape.size()), value.shape.data(),
                         static_cast<size_t>(value.Nbytes())});
  }
  return described;
}

std::string ShapesInWords(const std::vector<tvi_tensor_info>& inputs,
                          const int64_t* const* shapes) {
  std::string text;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const std::vector<int64_t> shape(shapes[k], shapes[k] + inputs[k].rank);
    text += (k == 0 ? "`" : ", `") + std::string(inputs[k].name) + "` " + Text(shape);
  }
  return text;
}

}  // namespace tvm_interop
