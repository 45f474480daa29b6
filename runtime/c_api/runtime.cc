// The C interface of the runtime library: see `tvm_interop/runtime.h`.

#include "tvm_interop/runtime.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "runtime/c_api/describe.h"
#include "runtime/c_api/loaded_model.h"
#include "runtime/c_api/timed_of.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/counted.h"
#include "runtime/model/error.h"
#include "runtime/model/instance.h"
#include "runtime/model/model.h"
#include "runtime/model/runnable.h"

namespace {

using tvm_interop::CountedOutput;
using tvm_interop::ErrorCode;
using tvm_interop::LoadOptions;
using tvm_interop::Model;
using tvm_interop::ModelError;
using tvm_interop::OpTiming;
using tvm_interop::Plan;
using tvm_interop::Runnable;
using tvm_interop::Source;
using tvm_interop::ThreadPool;

thread_local std::string last_error;

tvi_status Fail(tvi_status status, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();  // There is not even memory for the text.
  }
  return status;
}

// Runs `body`, and turns an exception into a status. The error's text begins with `prefix`.
template <typename Body>
tvi_status Guarded(const std::string& prefix, Body&& body) noexcept {
  try {
    body();
    return TVI_OK;
  } catch (const ModelError& error) {
    return Fail(static_cast<tvi_status>(error.code()), (prefix + error.what()).c_str());
  } catch (const std::bad_alloc&) {
    return Fail(TVI_ERROR_OUT_OF_MEMORY, "there is not enough memory");
  } catch (const std::exception& error) {
    return Fail(TVI_ERROR_INTERNAL, error.what());
  }
}

[[noreturn]] void RefuseArgument(const std::string& text) {
  throw ModelError(ErrorCode::kInvalidArgument, text);
}

void RequireArgument(const void* argument, const char* name) {
  if (argument == nullptr) {
    RefuseArgument("the argument `" + std::string(name) + "` is NULL");
  }
}

void RequireIndex(size_t index, size_t count, const std::string& what) {
  if (index < count) return;
  RefuseArgument("there is no " + what + " " + std::to_string(index) + ": the model has " +
                 std::to_string(count) + ", numbered from 0");
}

// Refuses a structure whose `struct_size` is less than the size of the type called `type`.
void RequireSize(size_t given, size_t least, const char* type) {
  if (given >= least) return;
  RefuseArgument("`struct_size` is " + std::to_string(given) + "; set it to sizeof(" + type + ")");
}

LoadOptions OptionsFrom(const tvi_load_options* given) {
  LoadOptions options;
  if (given == nullptr) return options;
  RequireSize(given->struct_size, sizeof(tvi_load_options), "tvi_load_options");
  if (given->sha256 != nullptr) {
    options.sha256 = given->sha256;
    if (options.sha256.size() != 64 ||
        options.sha256.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      RefuseArgument("`sha256` is `" + options.sha256 + "`; give 64 hexadecimal digits");
    }
  }
  if (given->onednn_path != nullptr) options.onednn_path = given->onednn_path;
  options.needs_library = given->needs_onednn != 0;
  return options;
}

}  // namespace

struct tvi_instance {
  tvi_instance(const tvi_model& from, size_t shape, std::shared_ptr<ThreadPool> guests)
      : instance(tvm_interop::MakeInstance(from.model, shape, std::move(guests))),
        counted(from.counted()),
        warning(instance->Warning()) {}
  const std::unique_ptr<Runnable> instance;
  const std::vector<CountedOutput> counted;
  const std::string warning;
};

namespace tvm_interop {

Timed& TimedOf(tvi_instance* instance) { return dynamic_cast<Instance&>(*instance->instance); }

}  // namespace tvm_interop

namespace {

tvi_status Load(const std::string& prefix, std::unique_ptr<Source> (*open)(const void*, size_t),
                const void* data, size_t nbytes, const tvi_load_options* options,
                tvi_model** model) {
  return Guarded(prefix, [&] {
    if (data == nullptr) RefuseArgument("the path or data is NULL");
    if (model == nullptr) RefuseArgument("`model` is NULL: there is no place for the result");
    const LoadOptions wanted = OptionsFrom(options);
    const std::unique_ptr<Source> source = open(data, nbytes);
    *model = std::make_unique<tvi_model>(std::make_shared<Model>(*source, wanted)).release();
  });
}

void RequireShape(const tvi_model& model, size_t shape) {
  if (shape < model.inputs.size()) return;
  RefuseArgument("there is no shape " + std::to_string(shape) + "; the model has " +
                 std::to_string(model.inputs.size()) + " shapes, numbered from 0");
}

// Makes an instance. It runs on the threads of the pool `guests`. If `guests` is null, it runs on
// the pool of the process.
void Create(tvi_model* model, size_t shape, std::shared_ptr<ThreadPool> guests,
            tvi_instance** instance) {
  if (model == nullptr) RefuseArgument("`model` is NULL");
  if (instance == nullptr) RefuseArgument("`instance` is NULL: there is no place for the result");
  RequireShape(*model, shape);
  *instance = std::make_unique<tvi_instance>(*model, shape, std::move(guests)).release();
}

std::shared_ptr<ThreadPool> GuestsFrom(const tvi_thread_pool* given) {
  constexpr int32_t kMostThreads = 4095;
  if (given == nullptr) RefuseArgument("`pool` is NULL");
  RequireSize(given->struct_size, sizeof(tvi_thread_pool), "tvi_thread_pool");
  if (given->submit == nullptr) RefuseArgument("`submit` of the pool is NULL");
  if (given->num_threads < 0 || given->num_threads > kMostThreads) {
    RefuseArgument("`num_threads` of the pool is " + std::to_string(given->num_threads) +
                   "; it must be from 0 to " + std::to_string(kMostThreads));
  }
  tvm_interop::GuestThreads guests;
  guests.number = given->num_threads;
  guests.submit = [submit = given->submit, context = given->context](void (*task)(void*),
                                                                     void* argument) {
    return submit(context, task, argument) == 0;
  };
  return ThreadPool::OfGuests(std::move(guests));
}

void RequireInstance(const tvi_instance* instance) {
  if (instance == nullptr) RefuseArgument("`instance` is NULL");
}

}  // namespace

extern "C" {

int32_t tvi_version_major(void) { return TVI_VERSION_MAJOR; }
int32_t tvi_version_minor(void) { return TVI_VERSION_MINOR; }

const char* tvi_last_error(void) { return last_error.c_str(); }

tvi_status tvi_model_load(const char* path, const tvi_load_options* options, tvi_model** model) {
  const auto open = [](const void* name, size_t) {
    return tvm_interop::OpenFile(static_cast<const char*>(name));
  };
  const std::string prefix = path == nullptr ? "" : "`" + std::string(path) + "`: ";
  return Load(prefix, open, path, 0, options, model);
}

tvi_status tvi_model_load_memory(const void* data, size_t nbytes, const tvi_load_options* options,
                                 tvi_model** model) {
  return Load("", tvm_interop::OpenMemory, data, nbytes, options, model);
}

void tvi_model_free(tvi_model* model) { delete model; }

tvi_status tvi_model_find_rows(const tvi_model* model, int64_t rows, size_t* shape) {
  return tvi_model_find_sizes(model, &rows, 1, shape);
}

tvi_status tvi_model_find_sizes(const tvi_model* model, const int64_t* sizes, size_t num_sizes,
                                size_t* shape) {
  return Guarded("", [&] {
    RequireArgument(model, "model");
    RequireArgument(sizes, "sizes");
    RequireArgument(shape, "shape");
    *shape = tvm_interop::FindShape(model->model->artifact().manifest.ranges,
                                    std::vector<int64_t>(sizes, sizes + num_sizes));
  });
}

tvi_status tvi_model_find_shape(const tvi_model* model, const int64_t* const* shapes,
                                size_t* shape) {
  return Guarded("", [&] {
    RequireArgument(model, "model");
    RequireArgument(shapes, "shapes");
    RequireArgument(shape, "shape");
    for (size_t k = 0; k < model->inputs[0].size(); ++k) {
      if (shapes[k] == nullptr && model->inputs[0][k].rank > 0) {
        RefuseArgument("the shape of input `" + std::string(model->inputs[0][k].name) +
                       "` is NULL");
      }
    }
    for (size_t i = 0; i < model->inputs.size(); ++i) {
      bool fits = true;
      for (size_t k = 0; k < model->inputs[i].size(); ++k) {
        const tvi_tensor_info& info = model->inputs[i][k];
        fits = fits && (info.rank == 0 ||
                        std::memcmp(info.shape, shapes[k], info.rank * sizeof(int64_t)) == 0);
      }
      if (!fits) continue;
      *shape = i;
      return;
    }
    RefuseArgument("the model was not compiled for inputs of these shapes: " +
                   tvm_interop::ShapesInWords(model->inputs[0], shapes) +
                   "; tvi_model_input tells the shapes that it was compiled for");
  });
}

tvi_status tvi_model_run_counts(const tvi_model* model, size_t shape, tvi_run_counts* counts) {
  return Guarded("", [&] {
    RequireArgument(model, "model");
    RequireArgument(counts, "counts");
    RequireSize(counts->struct_size, sizeof(tvi_run_counts), "tvi_run_counts");
    RequireShape(*model, shape);
    const auto found = model->model->run_counts(shape).counts();
    *counts = {counts->struct_size, found.exact, found.filled_up, found.rows_given,
               found.rows_computed};
  });
}

tvi_status tvi_instance_create(tvi_model* model, size_t shape, tvi_instance** instance) {
  return Guarded("", [&] { Create(model, shape, nullptr, instance); });
}

tvi_status tvi_instance_create_on_pool(tvi_model* model, size_t shape, const tvi_thread_pool* pool,
                                       tvi_instance** instance) {
  return Guarded("", [&] { Create(model, shape, GuestsFrom(pool), instance); });
}

const char* tvi_instance_warning(const tvi_instance* instance) {
  return instance == nullptr || instance->warning.empty() ? nullptr : instance->warning.c_str();
}

void tvi_instance_free(tvi_instance* instance) { delete instance; }

tvi_status tvi_run(tvi_instance* instance, const void* const* inputs, void* const* outputs) {
  return Guarded("", [&] {
    RequireInstance(instance);
    if (!instance->counted.empty()) {
      RefuseArgument(
          "the sizes of the model's outputs depend on computed values: run the model by "
          "tvi_run_counted, which gives the sizes");
    }
    instance->instance->Run(inputs, outputs);
  });
}

tvi_status tvi_run_counted(tvi_instance* instance, const void* const* inputs, void* const* outputs,
                           int64_t* sizes) {
  return Guarded("", [&] {
    RequireInstance(instance);
    RequireArgument(sizes, "sizes");
    tvm_interop::RunCounted(instance->instance.get(), instance->counted, inputs, outputs, sizes);
  });
}

tvi_status tvi_run_rows(tvi_instance* instance, int64_t rows, const void* const* inputs,
                        void* const* outputs) {
  return tvi_run_sizes(instance, &rows, 1, inputs, outputs);
}

tvi_status tvi_run_sizes(tvi_instance* instance, const int64_t* sizes, size_t num_sizes,
                         const void* const* inputs, void* const* outputs) {
  return Guarded("", [&] {
    RequireInstance(instance);
    RequireArgument(sizes, "sizes");
    instance->instance->RunRows(std::vector<int64_t>(sizes, sizes + num_sizes), inputs, outputs);
  });
}

void* tvi_instance_input_buffer(tvi_instance* instance, size_t index) {
  void* buffer = nullptr;
  Guarded("", [&] {
    RequireInstance(instance);
    RequireIndex(index, instance->instance->plan().inputs.size(), "input");
    buffer = instance->instance->InputBuffer(index);
  });
  return buffer;
}

void* tvi_instance_output_buffer(tvi_instance* instance, size_t index) {
  void* buffer = nullptr;
  Guarded("", [&] {
    RequireInstance(instance);
    const Plan& plan = instance->instance->plan();
    RequireIndex(index, tvm_interop::NumModelOutputs(instance->counted, plan), "output");
    buffer = instance->instance->OutputBuffer(index);
  });
  return buffer;
}

tvi_status tvi_profile(tvi_instance* instance, const void* const* inputs, void* const* outputs,
                       tvi_operator_time* times, size_t capacity, size_t* count) {
  return Guarded("", [&] {
    RequireInstance(instance);
    RequireArgument(count, "count");
    const Plan& plan = instance->instance->plan();
    const size_t wanted = plan.operators.size();
    if (wanted > capacity || times == nullptr) {
      *count = wanted;
      return;
    }
    size_t i = 0;
    const auto all = tvm_interop::AddressesOfAll(instance->counted, plan, outputs);
    for (const OpTiming& timing : instance->instance->Profile(inputs, all.data())) {
      times[i++] = {plan.operators[timing.op].name.c_str(),
                    timing.stream,
                    timing.thread,
                    timing.start_ns,
                    timing.end_ns,
                    timing.on_core_ns,
                    timing.op};
    }
    *count = wanted;
  });
}

int32_t tvi_num_threads(void) {
  int32_t threads = 0;
  Guarded("", [&] { threads = ThreadPool::Get().num_threads(); });
  return threads;
}

tvi_status tvi_set_num_threads(int32_t num_threads, int32_t pin) {
  return Guarded("", [&] {
    if (num_threads < 1) {
      RefuseArgument("the number of threads is " + std::to_string(num_threads) +
                     "; it must be at least 1");
    }
    ThreadPool::Get().SetPinning(pin != 0);
    ThreadPool::Get().SetNumThreads(num_threads);
  });
}

}  // extern "C"
