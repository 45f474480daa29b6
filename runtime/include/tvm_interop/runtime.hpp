// C++17 on top of `tvm_interop/runtime.h`: objects that free themselves, and exceptions.
//
//     tvm_interop::Model model("model.tar");
//     tvm_interop::Instance instance(model);
//     instance.Run({image.data()}, {scores.data()});
//
// The header needs nothing but the C interface, so a program and the library may be compiled by
// different compilers.
#ifndef TVM_INTEROP_RUNTIME_HPP_
#define TVM_INTEROP_RUNTIME_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tvm_interop/runtime.h"

namespace tvm_interop {

// An error of the library. `what()` names what is at fault.
class Error : public std::runtime_error {
 public:
  Error(tvi_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  tvi_status status() const { return status_; }

 private:
  tvi_status status_;
};

namespace internal {

inline void Check(tvi_status status) {
  if (status != TVI_OK) throw Error(status, tvi_last_error());
}

template <typename Element>
constexpr tvi_type TypeFor() {
  using T = std::remove_cv_t<Element>;
  if constexpr (std::is_same_v<T, bool>) return TVI_BOOL;
  if constexpr (std::is_same_v<T, int8_t>) return TVI_INT8;
  if constexpr (std::is_same_v<T, int16_t>) return TVI_INT16;
  if constexpr (std::is_same_v<T, int32_t>) return TVI_INT32;
  if constexpr (std::is_same_v<T, int64_t>) return TVI_INT64;
  if constexpr (std::is_same_v<T, uint8_t>) return TVI_UINT8;
  if constexpr (std::is_same_v<T, uint16_t>) return TVI_UINT16;
  if constexpr (std::is_same_v<T, uint32_t>) return TVI_UINT32;
  if constexpr (std::is_same_v<T, uint64_t>) return TVI_UINT64;
  if constexpr (std::is_same_v<T, float>) return TVI_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return TVI_FLOAT64;
  return static_cast<tvi_type>(0);
}

// Whether this type can hold the elements of a tensor. C++17 has no floats of 16 bits, so their
// bits are given as uint16_t.
template <typename Element>
constexpr bool Holds(tvi_type type) {
  if (TypeFor<Element>() == type) return true;
  return TypeFor<Element>() == TVI_UINT16 && (type == TVI_FLOAT16 || type == TVI_BFLOAT16);
}

}  // namespace internal

// The elements of a tensor, in a program's memory or in an instance's buffer. The memory is not
// owned.
template <typename Element>
class Span {
 public:
  Span(Element* data, size_t size) : data_(data), size_(size) {}
  Element* data() const { return data_; }
  size_t size() const { return size_; }
  Element* begin() const { return data_; }
  Element* end() const { return data_ + size_; }
  Element& operator[](size_t index) const { return data_[index]; }

 private:
  Element* data_;
  size_t size_;
};

// An input or output of a model.
struct Tensor {
  std::string name;
  tvi_type type;
  std::vector<int64_t> shape;
  size_t nbytes;
};

struct LoadOptions {
  std::string sha256;         // the SHA-256 that the file must have; empty for any
  std::string onednn_path;    // the file of oneDNN; if empty, the library looks for the file
  bool needs_onednn = false;  // whether a missing oneDNN is an error
};

// A loaded model. Copies of this object share the model.
class Model {
 public:
  explicit Model(const std::string& path, const LoadOptions& options = {}) {
    const tvi_load_options given = Given(options);
    tvi_model* model = nullptr;
    internal::Check(tvi_model_load(path.c_str(), &given, &model));
    model_.reset(model, tvi_model_free);
  }
  Model(const void* data, size_t nbytes, const LoadOptions& options = {}) {
    const tvi_load_options given = Given(options);
    tvi_model* model = nullptr;
    internal::Check(tvi_model_load_memory(data, nbytes, &given, &model));
    model_.reset(model, tvi_model_free);
  }

  // The device that the model was compiled for, such as "cpu:0" or "cuda:0".
  std::string device(size_t shape = 0) const {
    const char* name = tvi_model_device(get(), shape);
    if (name == nullptr) RefuseShape(shape);
    return name;
  }
  size_t num_shapes() const { return tvi_model_num_shapes(get()); }
  std::vector<Tensor> inputs(size_t shape = 0) const {
    return Tensors(tvi_model_input, tvi_model_num_inputs(get()), shape);
  }
  std::vector<Tensor> outputs(size_t shape = 0) const {
    return Tensors(tvi_model_output, tvi_model_num_outputs(get()), shape);
  }
  // The axis of an output whose size depends on computed values, or -1: see
  // `tvi_model_output_counted_axis`.
  int counted_axis(size_t output) const { return tvi_model_output_counted_axis(get(), output); }
  // The strings of an input or output. Runs take or give positions in this list. Empty if the input
  // or output is not strings: see `tvi_model_output_string`.
  std::vector<std::string> input_strings(size_t input) const {
    return Strings(tvi_model_input_num_strings, tvi_model_input_string, input);
  }
  std::vector<std::string> output_strings(size_t output) const {
    return Strings(tvi_model_output_num_strings, tvi_model_output_string, output);
  }
  // A run reads an input in place if its address is a multiple of this number of bytes. 0 if each
  // run copies the input.
  size_t input_alignment(size_t index, size_t shape = 0) const {
    return tvi_model_input_alignment(get(), shape, index);
  }
  // The batch size of a shape, or 0 if the model was not compiled for a list of batch sizes.
  int64_t batch_size(size_t shape) const { return tvi_model_batch_size(get(), shape); }
  // The number of rows of a shape, or 0 if the model was not compiled for a range of rows.
  int64_t row_size(size_t shape) const { return tvi_model_row_size(get(), shape); }
  // Returns the number of the shape that runs `rows` rows. Throws Error if `rows` is outside of the
  // range that the model was compiled for.
  size_t FindRows(int64_t rows) const {
    size_t found = 0;
    internal::Check(tvi_model_find_rows(get(), rows, &found));
    return found;
  }
  // Returns the number of the shape that runs these numbers of rows, one for each range. Throws
  // Error if the numbers do not fit the model's ranges.
  size_t FindSizes(const std::vector<int64_t>& sizes) const {
    size_t found = 0;
    internal::Check(tvi_model_find_sizes(get(), sizes.data(), sizes.size(), &found));
    return found;
  }
  // Returns the number of the shape that was compiled for inputs of these shapes. Throws Error if
  // there is none.
  size_t FindShape(const std::vector<std::vector<int64_t>>& shapes) const {
    const std::vector<Tensor> wanted = inputs();
    bool fits = shapes.size() == wanted.size();
    std::vector<const int64_t*> dims;
    for (size_t i = 0; fits && i < shapes.size(); ++i) {
      fits = shapes[i].size() == wanted[i].shape.size();
      dims.push_back(shapes[i].data());
    }
    if (!fits) {
      throw Error(TVI_ERROR_INVALID_ARGUMENT,
                  "give one shape, of the input's rank, for each input");
    }
    size_t found = 0;
    internal::Check(tvi_model_find_shape(get(), dims.data(), &found));
    return found;
  }
  // Returns the number of runs at a shape, and the rows of these runs: see `tvi_run_counts`.
  tvi_run_counts run_counts(size_t shape) const {
    tvi_run_counts counts{};
    counts.struct_size = sizeof(counts);
    internal::Check(tvi_model_run_counts(get(), shape, &counts));
    return counts;
  }
  // A warning for the user, for example that oneDNN is missing. Empty if there is none.
  std::string warning() const {
    const char* text = tvi_model_warning(get());
    return text == nullptr ? "" : text;
  }
  tvi_model* get() const { return model_.get(); }

 private:
  [[noreturn]] void RefuseShape(size_t shape) const {
    throw Error(TVI_ERROR_INVALID_ARGUMENT, "there is no shape " + std::to_string(shape) +
                                                ": the model has " + std::to_string(num_shapes()) +
                                                " shapes, numbered from 0");
  }
  static tvi_load_options Given(const LoadOptions& options) {
    tvi_load_options given{};
    given.struct_size = sizeof(given);
    given.sha256 = options.sha256.empty() ? nullptr : options.sha256.c_str();
    given.onednn_path = options.onednn_path.empty() ? nullptr : options.onednn_path.c_str();
    given.needs_onednn = options.needs_onednn ? 1 : 0;
    return given;
  }

  template <typename InfoOf>
  std::vector<Tensor> Tensors(InfoOf info_of, size_t count, size_t shape) const {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < count; ++i) {
      const tvi_tensor_info* info = info_of(get(), shape, i);
      if (info == nullptr) RefuseShape(shape);
      tensors.push_back({info->name, info->type,
                         std::vector<int64_t>(info->shape, info->shape + info->rank),
                         info->nbytes});
    }
    return tensors;
  }

  template <typename Count, typename At>
  std::vector<std::string> Strings(Count count, At at, size_t index) const {
    std::vector<std::string> strings;
    const size_t number = count(get(), index);
    for (size_t i = 0; i < number; ++i) {
      strings.emplace_back(at(get(), index, static_cast<int64_t>(i)));
    }
    return strings;
  }

  std::shared_ptr<tvi_model> model_;
};

// The start and the end of one operator, in nanoseconds since the run began.
struct OperatorTime {
  std::string name;
  int stream;
  int thread;
  int64_t start_ns;
  int64_t end_ns;
  int64_t on_core_ns;
  int op;  // the operator's number in the model, from 0
};

// Runs a model for one shape. Only one thread at a time may use an instance.
class Instance {
 public:
  explicit Instance(const Model& model, size_t shape = 0) : model_(model), shape_(shape) {
    tvi_instance* instance = nullptr;
    internal::Check(tvi_instance_create(model.get(), shape, &instance));
    instance_.reset(instance);
  }
  // Makes an instance that runs on threads of the program: see `tvi_thread_pool`.
  Instance(const Model& model, const tvi_thread_pool& pool, size_t shape = 0)
      : model_(model), shape_(shape) {
    tvi_instance* instance = nullptr;
    internal::Check(tvi_instance_create_on_pool(model.get(), shape, &pool, &instance));
    instance_.reset(instance);
  }

  // Runs once, on the instance's own buffers: see `Input` and `Output`.
  void Run() { internal::Check(tvi_run(get(), nullptr, nullptr)); }
  // Runs once, on the program's memory, which has one address for each input and output.
  void Run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
    CheckCounts(inputs, outputs);
    internal::Check(tvi_run(get(), inputs.data(), outputs.data()));
  }
  // Runs once, as `Run` does, and returns the size of each output whose size depends on computed
  // values: see `tvi_run_counted`.
  std::vector<int64_t> RunCounted() {
    std::vector<int64_t> sizes(tvi_model_num_outputs(model_.get()));
    internal::Check(tvi_run_counted(get(), nullptr, nullptr, sizes.data()));
    return sizes;
  }
  std::vector<int64_t> RunCounted(const std::vector<const void*>& inputs,
                                  const std::vector<void*>& outputs) {
    CheckCounts(inputs, outputs);
    std::vector<int64_t> sizes(outputs.size());
    internal::Check(tvi_run_counted(get(), inputs.data(), outputs.data(), sizes.data()));
    return sizes;
  }
  // Runs once on the program's memory, which has `rows` rows: see `tvi_run_rows`.
  void RunRows(int64_t rows, const std::vector<const void*>& inputs,
               const std::vector<void*>& outputs) {
    CheckCounts(inputs, outputs);
    internal::Check(tvi_run_rows(get(), rows, inputs.data(), outputs.data()));
  }

  // Runs once on the program's memory, with a number of rows for each range: see `tvi_run_sizes`.
  void RunSizes(const std::vector<int64_t>& sizes, const std::vector<const void*>& inputs,
                const std::vector<void*>& outputs) {
    CheckCounts(inputs, outputs);
    internal::Check(
        tvi_run_sizes(get(), sizes.data(), sizes.size(), inputs.data(), outputs.data()));
  }
  // The instance's own buffer for an input or output. Throws Error if `Element` cannot hold the
  // tensor's elements. Floats of 16 bits are given as uint16_t.
  template <typename Element>
  Span<Element> Input(size_t index) {
    return Buffer<Element>(tvi_model_input(model_.get(), shape_, index),
                           tvi_instance_input_buffer(get(), index));
  }
  template <typename Element>
  Span<Element> Output(size_t index) {
    return Buffer<Element>(tvi_model_output(model_.get(), shape_, index),
                           tvi_instance_output_buffer(get(), index));
  }

  // Runs once on the instance's own buffers, and returns when each operator ran.
  std::vector<OperatorTime> Profile() {
    size_t count = 0;
    internal::Check(tvi_profile(get(), nullptr, nullptr, nullptr, 0, &count));
    std::vector<tvi_operator_time> times(count + 1);
    internal::Check(tvi_profile(get(), nullptr, nullptr, times.data(), times.size(), &count));
    std::vector<OperatorTime> result;
    for (size_t i = 0; i < count; ++i) {
      result.push_back({times[i].name, times[i].stream, times[i].thread, times[i].start_ns,
                        times[i].end_ns, times[i].on_core_ns, times[i].op});
    }
    return result;
  }
  // A warning, for example that the instance launches its operators one by one; empty if there is
  // none.
  std::string warning() const {
    const char* text = tvi_instance_warning(get());
    return text == nullptr ? "" : text;
  }
  tvi_instance* get() const { return instance_.get(); }

 private:
  void CheckCounts(const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs) const {
    if (inputs.size() != tvi_model_num_inputs(model_.get()) ||
        outputs.size() != tvi_model_num_outputs(model_.get())) {
      throw Error(TVI_ERROR_INVALID_ARGUMENT,
                  "give one address for each of the model's inputs and outputs");
    }
  }

  template <typename Element>
  static Span<Element> Buffer(const tvi_tensor_info* info, void* buffer) {
    if (info == nullptr || buffer == nullptr) {
      throw Error(TVI_ERROR_INVALID_ARGUMENT, tvi_last_error());
    }
    if (!internal::Holds<Element>(info->type)) {
      throw Error(TVI_ERROR_INVALID_ARGUMENT,
                  "the call asks for elements of a type that `" + std::string(info->name) +
                      "` does not have: its type is the `type` of its entry in inputs() or "
                      "outputs()");
    }
    return {static_cast<Element*>(buffer), info->nbytes / sizeof(Element)};
  }

  struct Free {
    void operator()(tvi_instance* instance) const { tvi_instance_free(instance); }
  };
  Model model_;
  size_t shape_;
  std::unique_ptr<tvi_instance, Free> instance_;
};

}  // namespace tvm_interop

#endif  // TVM_INTEROP_RUNTIME_HPP_
