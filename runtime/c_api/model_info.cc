// The functions of the C interface that describe a loaded model. None of them can fail: see
// `tvm_interop/runtime.h` for what they return if there is nothing to describe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/c_api/loaded_model.h"
#include "runtime/model/manifest.h"
#include "runtime/model/string_tensors.h"
#include "tvm_interop/runtime.h"

namespace {

using tvm_interop::CountedOutput;
using tvm_interop::Manifest;
using tvm_interop::StringTensor;

// Whether the model has a shape with the number `shape`. False if the model is null.
bool HasShape(const tvi_model* model, size_t shape) {
  return model != nullptr && shape < model->inputs.size();
}

// The field of a manifest with the inputs or the outputs that are strings.
using StringTensors = std::vector<StringTensor> Manifest::*;

// The strings of an input or output; null if it is not strings, or if the model is null.
const std::vector<std::string>* StringsOf(const tvi_model* model, StringTensors tensors,
                                          size_t index) {
  if (model == nullptr) return nullptr;
  return tvm_interop::StringsOf(model->model->artifact().manifest.*tensors, index);
}

size_t NumStrings(const tvi_model* model, StringTensors tensors, size_t index) {
  const std::vector<std::string>* strings = StringsOf(model, tensors, index);
  return strings == nullptr ? 0 : strings->size();
}

const char* StringAt(const tvi_model* model, StringTensors tensors, size_t index,
                     int64_t position) {
  const std::vector<std::string>* strings = StringsOf(model, tensors, index);
  if (strings == nullptr || position < 0 || static_cast<size_t>(position) >= strings->size()) {
    return nullptr;
  }
  return (*strings)[position].c_str();
}

const tvi_tensor_info* InfoAt(const std::vector<std::vector<tvi_tensor_info>>& infos, size_t shape,
                              size_t index) {
  return shape < infos.size() && index < infos[shape].size() ? &infos[shape][index] : nullptr;
}

}  // namespace

extern "C" {

const char* tvi_model_warning(const tvi_model* model) {
  if (model == nullptr || model->model->warning().empty()) return nullptr;
  return model->model->warning().c_str();
}

int32_t tvi_model_uses_fallback(const tvi_model* model) {
  return model != nullptr && model->model->uses_fallback() ? 1 : 0;
}

const char* tvi_model_device(const tvi_model* model, size_t shape) {
  if (!HasShape(model, shape)) return nullptr;
  const auto& streams = model->model->plan(shape).streams;
  return streams.empty() ? "cpu:0" : streams[0].device.c_str();
}

size_t tvi_model_num_shapes(const tvi_model* model) {
  return model == nullptr ? 0 : model->inputs.size();
}
size_t tvi_model_num_inputs(const tvi_model* model) {
  return model == nullptr ? 0 : model->inputs[0].size();
}
size_t tvi_model_num_outputs(const tvi_model* model) {
  return model == nullptr ? 0 : model->outputs[0].size();
}

const tvi_tensor_info* tvi_model_input(const tvi_model* model, size_t shape, size_t index) {
  return model == nullptr ? nullptr : InfoAt(model->inputs, shape, index);
}

const tvi_tensor_info* tvi_model_output(const tvi_model* model, size_t shape, size_t index) {
  return model == nullptr ? nullptr : InfoAt(model->outputs, shape, index);
}

int32_t tvi_model_output_counted_axis(const tvi_model* model, size_t index) {
  if (model == nullptr) return -1;
  for (const CountedOutput& each : model->counted()) {
    if (static_cast<size_t>(each.output) == index) return static_cast<int32_t>(each.axis);
  }
  return -1;
}

size_t tvi_model_input_num_strings(const tvi_model* model, size_t index) {
  return NumStrings(model, &Manifest::string_inputs, index);
}

const char* tvi_model_input_string(const tvi_model* model, size_t index, int64_t position) {
  return StringAt(model, &Manifest::string_inputs, index, position);
}

size_t tvi_model_output_num_strings(const tvi_model* model, size_t index) {
  return NumStrings(model, &Manifest::string_outputs, index);
}

const char* tvi_model_output_string(const tvi_model* model, size_t index, int64_t position) {
  return StringAt(model, &Manifest::string_outputs, index, position);
}

size_t tvi_model_input_alignment(const tvi_model* model, size_t shape, size_t index) {
  if (tvi_model_input(model, shape, index) == nullptr) return 0;
  const tvm_interop::Model& loaded = *model->model;
  return loaded.plan(shape).Gpu().has_value() ? 0 : loaded.InputAlignment(shape, index);
}

int64_t tvi_model_batch_size(const tvi_model* model, size_t shape) {
  if (model == nullptr) return 0;
  const std::vector<int64_t>& sizes = model->model->artifact().manifest.batch_sizes;
  return shape < sizes.size() ? sizes[shape] : 0;
}

int64_t tvi_model_row_size(const tvi_model* model, size_t shape) {
  return tvi_model_range_size(model, 0, shape);
}

const char* tvi_model_row_dimension(const tvi_model* model) {
  return tvi_model_range_dimension(model, 0);
}

size_t tvi_model_num_ranges(const tvi_model* model) {
  if (model == nullptr) return 0;
  return model->model->artifact().manifest.ranges.size();
}

const char* tvi_model_range_dimension(const tvi_model* model, size_t range) {
  if (model == nullptr) return nullptr;
  const auto& ranges = model->model->artifact().manifest.ranges;
  return range < ranges.size() ? ranges[range].dimension.c_str() : nullptr;
}

int64_t tvi_model_range_size(const tvi_model* model, size_t range, size_t shape) {
  if (model == nullptr) return 0;
  const auto& ranges = model->model->artifact().manifest.ranges;
  return range < ranges.size() && shape < ranges[range].sizes.size() ? ranges[range].sizes[shape]
                                                                     : 0;
}

const char* tvi_model_row_mask(const tvi_model* model, size_t input) {
  if (input >= tvi_model_num_inputs(model)) return nullptr;
  const auto& masks = model->model->artifact().manifest.masks;
  const auto mask = masks.find(model->inputs[0][input].name);
  return mask == masks.end() ? nullptr : mask->second.c_str();
}

size_t tvi_model_weights_nbytes(const tvi_model* model) {
  return model == nullptr ? 0 : model->model->WeightsNbytes();
}

size_t tvi_model_instance_nbytes(const tvi_model* model, size_t shape) {
  return HasShape(model, shape) ? model->model->InstanceNbytes(shape) : 0;
}

int32_t tvi_model_num_threads(const tvi_model* model, size_t shape) {
  if (!HasShape(model, shape) || model->model->plan(shape).Gpu().has_value()) return 0;
  int64_t threads = 0;
  for (const tvm_interop::Stream& stream : model->model->plan(shape).streams) {
    threads += stream.threads;
  }
  return static_cast<int32_t>(threads);
}

}  // extern "C"
