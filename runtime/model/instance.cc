#include "runtime/model/instance.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <system_error>
#include <thread>

#include "runtime/core/aligned_memory.h"
#include "runtime/cpu/blocked_signals.h"
#include "runtime/cpu/kernel_share.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/error.h"
#include "runtime/model/tensor_header.h"

namespace tvm_interop {
namespace {

bool IsAligned(const void* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

// Refuses a model whose tensors need more memory than the machine has. Otherwise the system might
// grant the memory, and then kill the process when the memory is used.
void RequireMemory(size_t nbytes) {
  const auto there =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (nbytes <= there) return;
  const auto in_mib = [](size_t size) { return std::to_string(size >> 20) + " MiB"; };
  throw ModelError(ErrorCode::kOutOfMemory,
                   "the model needs " + in_mib(nbytes) + " of memory for its tensors, and this " +
                       "machine has " + in_mib(there) +
                       ": run it on a larger machine, or compile it for smaller inputs");
}

// Calls `work` on the calling thread and on up to `threads` - 1 other threads at the same time.
template <typename Work>
void RunOnNewThreads(const Work& work, size_t threads) {
  std::vector<std::thread> others;
  try {
    const BlockedSignals blocked(kSignalsOfComputing);
    while (others.size() + 1 < threads) others.emplace_back(work);
  } catch (const std::system_error&) {
    // If the system allows no more threads, the threads that were started do the work.
  }
  work();
  for (std::thread& other : others) other.join();
}

// Calls `work` on the calling thread and on up to `threads` - 1 guests (threads of the program's
// own pool) at the same time.
template <typename Work>
void RunOnGuests(ThreadPool* guests, const Work& work, size_t threads) {
  const auto task = [](int, int, void* data) {
    (*static_cast<const Work*>(data))();
    return 0;
  };
  const ThreadPool::CallerCount counted(guests);
  RunParallelLoop(task, const_cast<Work*>(&work),
                  static_cast<int>(std::min<size_t>(threads, guests->num_threads())));
}

// Returns the kernel that the operator runs: `kernel` itself, or one share of it.
std::unique_ptr<Kernel> ShareOf(const PlannedOperator& op, std::unique_ptr<Kernel> kernel) {
  if (!op.is_share) return kernel;
  return std::make_unique<SharedKernel>(std::move(kernel), static_cast<int>(op.share),
                                        static_cast<int>(op.shares));
}

}  // namespace

Instance::Instance(std::shared_ptr<Model> model, size_t shape, std::shared_ptr<ThreadPool> guests)
    : model_(std::move(model)),
      shape_(shape),
      plan_(model_->plan(shape)),
      kernel_code_(model_->Kernels(shape)),
      guests_(std::move(guests)),
      // Ask for at least one byte, because an empty arena needs an address too.
      arena_need_(static_cast<size_t>(std::max<int64_t>(plan_.arena_bytes, 1)),
                  ScratchUser::kInstance) {
  RequireMemory(model_->InstanceNbytes(shape));
  // Take a lease now, to see at once whether there is enough memory.
  const ScratchLease arena(arena_need_);
  PlaceTensors();
  PlaceArena(arena.data());
  MakePorts();
  PrepareKernels();
}

void Instance::PlaceTensors() {
  headers_.resize(plan_.values.size());
  dims_.resize(plan_.values.size());
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const PlannedValue& value = plan_.values[v];
    headers_[v] = HeaderOf(value, kCpuDevice, 0, &dims_[v]);
    TensorHeader& header = headers_[v];
    if (value.storage == Storage::kWeight) {
      // Casting `const` away is safe: `CheckPlan` has made sure that kernels do not write weights.
      header.data = const_cast<char*>(model_->weights(shape_).at(static_cast<int64_t>(v)));
    } else if (value.storage == Storage::kArena) {
      in_arena_.emplace_back(v, *value.offset);
    }
  }
  // A tensor may be a part of another tensor. Places the parts of weights, and the parts of tensors
  // that lie in the arena. Parts of inputs and outputs move with their tensors.
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const PlannedValue& value = plan_.values[v];
    if (value.storage != Storage::kAlias) continue;
    const int64_t offset = value.offset.value_or(0);
    const PlannedValue& root = plan_.values[*value.alias_of];
    if (root.storage == Storage::kWeight) {
      headers_[v].data = static_cast<char*>(headers_[*value.alias_of].data) + offset;
    } else if (root.storage == Storage::kArena) {
      in_arena_.emplace_back(v, *root.offset + offset);
    }
  }
}

void Instance::PlaceArena(char* arena) {
  if (arena == arena_) return;
  arena_ = arena;
  for (const auto& [value, position] : in_arena_) headers_[value].data = arena + position;
}

void Instance::MakePorts() {
  const auto port_of = [&](int64_t v, bool may_move) {
    Port port;
    port.value = v;
    port.nbytes = static_cast<size_t>(plan_.values[v].Nbytes());
    port.may_move = may_move;
    for (size_t other = 0; other < plan_.values.size(); ++other) {
      if (plan_.values[other].alias_of == v) port.aliases.push_back(static_cast<int64_t>(other));
    }
    return port;
  };
  const std::vector<RowRange>& ranges = model_->artifact().manifest.ranges;
  for (size_t r = 0; r < ranges.size(); ++r) {
    all_rows_[r] = static_cast<size_t>(ranges[r].sizes[shape_]);
  }
  // Notes in a port (an input or output of the model) where its rows lie in memory. The port has
  // the index `i` in the list `values` of each plan.
  const auto with_rows = [&](Port port, size_t i, const std::vector<int64_t> Plan::* values) {
    if (ranges.empty()) return port;
    std::vector<const std::vector<int64_t>*> shapes;
    for (size_t shape = 0; shape < model_->num_shapes(); ++shape) {
      const Plan& other = model_->plan(shape);
      shapes.push_back(&other.values[(other.*values)[i]].shape);
    }
    const PlannedValue& value = plan_.values[port.value];
    port.pieces = PiecesOf(value.shape, AxesOf(shapes, ranges), all_rows_,
                           static_cast<size_t>(value.type->nbytes()));
    return port;
  };
  for (int64_t v : plan_.inputs) {
    inputs_.push_back(with_rows(port_of(v, true), inputs_.size(), &Plan::inputs));
    inputs_.back().alignment = model_->InputAlignment(shape_, inputs_.size() - 1);
  }
  for (Port& port : inputs_) {
    const auto& masks = model_->artifact().manifest.masks;
    const auto mask = masks.find(plan_.values[port.value].name);
    if (mask == masks.end()) continue;
    port.filling = mask->second == "first" ? Filling::kMaskFirst
                   : mask->second == "any" ? Filling::kMaskAny
                   : mask->second == "all" ? Filling::kMaskAll
                                           : Filling::kZero;
  }
  for (int64_t v : plan_.outputs) {
    const auto times = std::count(plan_.outputs.begin(), plan_.outputs.end(), v);
    const bool may_move = times == 1 && plan_.values[v].storage == Storage::kOutput;
    outputs_.push_back(with_rows(port_of(v, may_move), outputs_.size(), &Plan::outputs));
  }
  // A plan may give a value the storage of an input or output although the model does not take or
  // return this value. For example, the model may return only parts of a tensor, which then has the
  // storage of an output. Such values need memory too.
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const Storage storage = plan_.values[v].storage;
    if (storage != Storage::kInput && storage != Storage::kOutput) continue;
    const auto is_port = [&](const Port& port) {
      return port.value == static_cast<int64_t>(v) && port.may_move;
    };
    if (std::any_of(inputs_.begin(), inputs_.end(), is_port)) continue;
    if (std::any_of(outputs_.begin(), outputs_.end(), is_port)) continue;
    hidden_.push_back(port_of(static_cast<int64_t>(v), true));
    Place(hidden_.back(), OwnBuffer(&hidden_.back()));
  }
  Bind(nullptr, nullptr, all_rows_);
}

void* Instance::OwnBuffer(Port* port) {
  if (port->own == nullptr) {
    port->own = AlignedZeros(port->nbytes);
    const char* begin = port->own.get();
    own_buffers_[begin] = {begin + port->nbytes, plan_.values[port->value].storage};
  }
  return port->own.get();
}

bool Instance::IsInOwnBufferOfAnother(const Port& port) const {
  const char* given = static_cast<const char*>(port.given);
  auto found = own_buffers_.upper_bound(given);
  if (given == nullptr || found == own_buffers_.begin()) return false;
  --found;
  const bool is_written = plan_.values[port.value].storage != Storage::kInput ||
                          found->second.storage != Storage::kInput;
  return is_written && found->first != port.own.get() &&
         std::less<const char*>()(given, found->second.end);
}

void Instance::Place(const Port& port, void* address) {
  headers_[port.value].data = address;
  for (int64_t alias : port.aliases) {
    headers_[alias].data = static_cast<char*>(address) + plan_.values[alias].offset.value_or(0);
  }
}

void Instance::PrepareKernels() {
  std::vector<std::unique_ptr<Kernel>> made(plan_.operators.size());
  std::vector<size_t> of_library;
  for (size_t i = 0; i < made.size(); ++i) {
    if (plan_.operators[i].library.has_value()) {
      of_library.push_back(i);
    } else {
      made[i] = MakeTvmKernel(plan_.operators[i]);
    }
  }
  PrepareLibraryKernels(of_library, &made);
  std::vector<PlannedOp> ops;
  for (size_t i = 0; i < made.size(); ++i) {
    const PlannedOperator& op = plan_.operators[i];
    ops.push_back({op.name, made[i].get(), static_cast<int>(op.stream),
                   std::vector<int>(op.waits.begin(), op.waits.end())});
  }
  kernels_ = std::move(made);
  // A model that returns its inputs unchanged has no operators, and so no streams.
  const auto streams = std::max<size_t>(plan_.streams.size(), 1);
  const int64_t threads = plan_.streams.empty() ? 1 : plan_.streams[0].threads;
  executor_ = std::make_unique<CpuExecutor>(static_cast<int>(streams), static_cast<int>(threads),
                                            ops, guests_);
}

void Instance::PrepareLibraryKernels(const std::vector<size_t>& ops,
                                     std::vector<std::unique_ptr<Kernel>>* made) {
  // Packing weights and generating code take most of the time, and several threads can do this at
  // once. Each operator is prepared by one thread.
  std::vector<std::exception_ptr> errors(ops.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < ops.size(); i = next++) {
      try {
        (*made)[ops[i]] = MakeLibraryKernel(plan_.operators[ops[i]]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  if (guests_ != nullptr) {
    RunOnGuests(guests_.get(), work, ops.size());
  } else {
    RunOnNewThreads(work, std::min<size_t>(ThreadPool::Get().num_threads(), ops.size()));
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

std::unique_ptr<Kernel> Instance::MakeLibraryKernel(const PlannedOperator& op) {
  std::vector<KernelArgument> arguments;
  for (int64_t v : op.Arguments()) {
    const bool is_constant = plan_.IsConstant(v);
    arguments.push_back({&headers_[v].data, is_constant, is_constant});
  }
  std::unique_ptr<LibraryKernel> kernel;
  try {
    // Each kernel uses one thread. A large operator is divided into parts, which have kernels of
    // their own and run at the same time.
    kernel = model_->library()->Prepare(*op.description, 1, arguments);
    kernel->Repack();
  } catch (const std::runtime_error& error) {
    throw ModelError(ErrorCode::kUnsupported,
                     "operator `" + op.name + "`: " + error.what() + "; compile the model again");
  }
  // Release the pages of the file: the kernel has packed its weights, or will read them from the
  // file again.
  for (int64_t v : op.inputs) {
    if (!plan_.IsConstant(v)) continue;
    model_->artifact().weight_block->Release(headers_[v].data,
                                             static_cast<size_t>(plan_.values[v].Nbytes()));
  }
  return ShareOf(op, std::move(kernel));
}

std::unique_ptr<Kernel> Instance::MakeTvmKernel(const PlannedOperator& op) {
  std::vector<TensorHeader*> args;
  for (int64_t v : op.Arguments()) args.push_back(&headers_[v]);
  return ShareOf(op, std::make_unique<TvmKernel>(kernel_code_, op.kernel, args));
}

void Instance::Bind(const void* const* inputs, void* const* outputs, const RowCounts& rows) {
  bool is_same = is_bound_ && rows == rows_;
  for (size_t i = 0; i < inputs_.size() && is_same; ++i) {
    is_same = inputs_[i].given == (inputs == nullptr ? nullptr : inputs[i]);
  }
  for (size_t i = 0; i < outputs_.size() && is_same; ++i) {
    is_same = outputs_[i].given == (outputs == nullptr ? nullptr : outputs[i]);
  }
  if (is_same) return;
  is_bound_ = false;
  rows_ = rows;
  const auto take = [this](Port* port, void* given) {
    port->given = given;
    const bool must_copy =
        !port->may_move || !IsAligned(given, port->alignment) || IsFilledUp(*port);
    port->is_copied = given != nullptr && must_copy;
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    // Casting `const` away is safe: `CheckPlan` has made sure that operators only read inputs.
    take(&inputs_[i], inputs == nullptr ? nullptr : const_cast<void*>(inputs[i]));
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    take(&outputs_[i], outputs == nullptr ? nullptr : outputs[i]);
  }
  FindOverlaps();
  for (std::vector<Port>* ports : {&inputs_, &outputs_}) {
    for (Port& port : *ports) {
      port.is_copied = port.is_copied || IsInOwnBufferOfAnother(port);
    }
  }
  for (std::vector<Port>* ports : {&inputs_, &outputs_}) {
    for (Port& port : *ports) {
      // A port (an input or output) for which the caller gives no memory needs a buffer of its own.
      // This also holds for an output that cannot be moved, because each run then copies the output
      // to this buffer.
      if (port.given == nullptr) OwnBuffer(&port);
      if (!port.may_move) continue;
      const bool in_place = port.given != nullptr && !port.is_copied;
      Place(port, in_place ? port.given : OwnBuffer(&port));
    }
  }
  is_bound_ = true;
}

void Instance::FindOverlaps() {
  // An operator may write an output before another operator has read an input. So if an output
  // shares bytes with another tensor of the caller, operators write it to the instance's own buffer
  // first.
  struct Range {
    const char* begin;
    const char* end;
    Port* output;  // null for an input
  };
  std::vector<Range> ranges;
  const auto add = [&](Port* port, bool is_output) {
    if (port->given == nullptr || port->nbytes == 0) return;
    const char* begin = static_cast<const char*>(port->given);
    ranges.push_back({begin, begin + port->nbytes, is_output ? port : nullptr});
  };
  for (Port& port : inputs_) add(&port, false);
  for (Port& port : outputs_) add(&port, true);
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::less<const char*>()(a.begin, b.begin);
  });
  // Among the tensors that the loop has visited so far, the tensor that ends at the highest
  // address.
  const Range* longest = nullptr;
  for (const Range& range : ranges) {
    if (longest != nullptr && std::less<const char*>()(range.begin, longest->end)) {
      if (range.output != nullptr) range.output->is_copied = true;
      if (longest->output != nullptr) longest->output->is_copied = true;
    }
    if (longest == nullptr || std::less<const char*>()(longest->end, range.end)) longest = &range;
  }
}

void Instance::RunRows(const std::vector<int64_t>& rows, const void* const* inputs,
                       void* const* outputs) {
  const std::vector<RowRange>& ranges = model_->artifact().manifest.ranges;
  CheckNumberOfRanges(ranges, rows.size());
  RowCounts counts{};
  for (size_t r = 0; r < ranges.size(); ++r) {
    const std::vector<int64_t>& sizes = ranges[r].sizes;
    const int64_t least = *std::min_element(sizes.begin(), sizes.end());
    if (rows[r] < least || rows[r] > sizes[shape_]) {
      throw ModelError(ErrorCode::kInvalidArgument,
                       "the number of rows" + NameOf(ranges, r) + " is " + std::to_string(rows[r]) +
                           ", and this instance runs " + std::to_string(least) + " to " +
                           std::to_string(sizes[shape_]) +
                           ": make an instance of the shape that tvi_model_find_sizes finds");
    }
    // The compiler has proven that a run of two or more rows may be padded with further rows. For a
    // run of one row there is no proof: if a dimension is 1, a model may compute something else. So
    // a run of one row needs the shape that was compiled for 1.
    if (rows[r] == 1 && sizes[shape_] != 1) {
      throw ModelError(ErrorCode::kInvalidArgument,
                       "the number of rows" + NameOf(ranges, r) +
                           " is 1, and this instance has the shape for " +
                           std::to_string(sizes[shape_]) +
                           ": make an instance of the shape that was compiled for 1, which "
                           "tvi_model_find_sizes finds");
    }
    counts[r] = static_cast<size_t>(rows[r]);
  }
  Run(inputs, outputs, counts);
}

void Instance::Run(const void* const* inputs, void* const* outputs, const RowCounts& rows) {
  const BusyGuard guard(this);
  // The lease ends after the outputs have been copied, because outputs may be parts of the arena.
  const ScratchLease arena(arena_need_);
  PlaceArena(arena.data());
  Bind(inputs, outputs, rows);
  CopyInputs();
  try {
    executor_->Run();
  } catch (const std::runtime_error& error) {
    throw ModelError(ErrorCode::kExecution, error.what());
  }
  CopyOutputs();
  model_->run_counts(shape_).Count(NumberOf(rows), NumberOf(all_rows_));
}

uint64_t Instance::NumberOf(const RowCounts& rows) const {
  const size_t ranges = model_->artifact().manifest.ranges.size();
  return std::accumulate(rows.begin(), rows.begin() + ranges, uint64_t{1},
                         std::multiplies<uint64_t>());
}

void Instance::CopyInputs() {
  for (const Port& port : inputs_) {
    if (port.is_copied) {
      if (IsFilledUp(port)) {
        FillUp(port.pieces, rows_, port.given, port.own.get());
      } else {
        std::memcpy(port.own.get(), port.given, port.nbytes);
      }
    }
    if (port.filling != Filling::kLastRow) FillMask(port);
  }
}

void Instance::FillMask(const Port& port) {
  const size_t range = model_->artifact().manifest.ranges.size() - 1;
  if (!port.pieces.HasMoreThan(rows_, range)) return;
  const PlannedValue& value = plan_.values[port.value];
  FillWithZeros(port.pieces, range, rows_[range], port.own.get());
  if (MaskFits(port.pieces, rows_, range, port.filling, value.type->name, port.own.get())) return;
  const std::string wanted = port.filling == Filling::kMaskFirst ? "1 in the first row"
                             : port.filling == Filling::kMaskAll ? "1 in all rows"
                                                                 : "one of them must be 1";
  throw ModelError(
      ErrorCode::kInvalidArgument,
      "the mask `" + value.name + "` does not allow a run to be filled up from " +
          std::to_string(rows_[range]) + " to " + std::to_string(all_rows_[range]) +
          " rows: its numbers must be from 0 to 1, and " + wanted +
          (range > 0 ? " for each " + model_->artifact().manifest.ranges[0].dimension : ""));
}

void Instance::CopyOutputs() {
  // First copy inputs that the model returns: another output may be copied over such an input.
  for (const bool may_move : {false, true}) {
    for (const Port& port : outputs_) {
      void* const made = headers_[port.value].data;
      void* const wanted = port.given != nullptr ? port.given : port.own.get();
      if (port.may_move != may_move || wanted == nullptr || wanted == made) continue;
      if (IsFilledUp(port) && port.given != nullptr) {
        CutOff(port.pieces, rows_, made, wanted);
      } else {
        std::memcpy(wanted, made, port.nbytes);
      }
    }
  }
}

double Instance::Time(int number) {
  const BusyGuard guard(this);
  const ScratchLease arena(arena_need_);
  PlaceArena(arena.data());
  return executor_->Time(number);
}

std::vector<OpTiming> Instance::Profile(const void* const* inputs, void* const* outputs) {
  const BusyGuard guard(this);
  const ScratchLease arena(arena_need_);
  PlaceArena(arena.data());
  Bind(inputs, outputs, all_rows_);
  CopyInputs();
  try {
    std::vector<OpTiming> timings = executor_->Profile();
    CopyOutputs();
    return timings;
  } catch (const std::runtime_error& error) {
    throw ModelError(ErrorCode::kExecution, error.what());
  }
}

}  // namespace tvm_interop
