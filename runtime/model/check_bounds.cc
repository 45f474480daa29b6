// Checks the numbers of a plan: sizes, indices, and which bytes operators read and write.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "runtime/core/names.h"
#include "runtime/core/op_description.h"
#include "runtime/core/shapes.h"
#include "runtime/model/check_plan.h"
#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

std::string Quoted(const std::string& name) { return "`" + name + "`"; }

[[noreturn]] void Refuse(const std::string& why) { throw ArtifactError(why); }

bool IsValue(const Plan& plan, int64_t value) {
  return 0 <= value && value < static_cast<int64_t>(plan.values.size());
}

bool IsGpu(const std::string& device) {
  if (device.rfind("cuda:", 0) != 0) return false;
  const std::string number = device.substr(5);
  if (number.empty() || number.size() > 4 || (number[0] == '0' && number.size() > 1)) return false;
  if (!std::all_of(number.begin(), number.end(), [](char c) { return '0' <= c && c <= '9'; })) {
    return false;
  }
  return std::stoi(number) < kMaxDevices;
}

void CheckStreams(const Plan& plan) {
  const auto count = static_cast<int64_t>(plan.streams.size());
  if (count > kMaxStreams) {
    Refuse("the plan has " + std::to_string(count) + " streams; at most " +
           std::to_string(kMaxStreams) + " are allowed");
  }
  std::set<int64_t> used;
  for (const PlannedOperator& op : plan.operators) used.insert(op.stream);
  for (int64_t s = 0; s < count; ++s) {
    const Stream& stream = plan.streams[s];
    const std::string which = "stream " + std::to_string(s);
    if (stream.device != "cpu:0" && !IsGpu(stream.device)) {
      Refuse(which + " is on device " + Quoted(stream.device) +
             "; a device is `cpu:0`, or a GPU such as `cuda:0`");
    }
    if (stream.threads < 1 || stream.threads > kMaxThreads) {
      Refuse(which + " has " + std::to_string(stream.threads) + " threads; it must have 1 to " +
             std::to_string(kMaxThreads));
    }
    if (stream.threads != plan.streams[0].threads) {
      Refuse(which +
             " has another number of threads than stream 0; all streams must have the same "
             "number");
    }
    if (used.count(s) == 0) Refuse(which + " has no operator");
  }
  for (const Stream& stream : plan.streams) {
    const std::string& first = plan.streams[0].device;
    if (stream.device == first) continue;
    if (!IsGpu(stream.device) || !IsGpu(first)) {
      Refuse("the plan runs on " + first + " and " + stream.device +
             "; a CPU cannot be combined with other devices");
    }
    throw ModelError(ErrorCode::kUnsupported,
                     "the model was compiled for several GPUs, " + first + " and " + stream.device +
                         " among them, and this library runs models on one; run it in Python, or "
                         "compile it for one GPU");
  }
}

void CheckValue(const PlannedValue& value) {
  const std::string name = Quoted(value.name);
  if (value.type == nullptr) {
    Refuse("value " + name + " is of type " + Quoted(value.dtype) + ", which is not known");
  }
  if (value.shape.size() > kMaxRank) {
    Refuse("value " + name + " has " + std::to_string(value.shape.size()) +
           " dimensions; at most " + std::to_string(kMaxRank) + " are allowed");
  }
  for (int64_t dim : value.shape) {
    if (dim < 0 || dim > kMaxDimension) {
      Refuse("value " + name + " has a dimension of " + std::to_string(dim) + " in " +
             Text(value.shape) + "; a dimension is from 0 to " + std::to_string(kMaxDimension));
    }
  }
  if (value.layout != Layout::kPlain && value.storage == Storage::kWeight) {
    Refuse("weight " + name + " has the layout " + NameOf(value.layout) +
           ", but weights have the plain one");
  }
  if (value.layout != Layout::kPlain && value.shape.size() != 4) {
    Refuse("value " + name + " is " + NameOf(value.layout) + ", and has " +
           std::to_string(value.shape.size()) + " dimensions; images have 4");
  }
  if (value.offset.has_value() && (*value.offset < 0 || *value.offset > kMaxBytes)) {
    Refuse("value " + name + " lies at byte " + std::to_string(*value.offset) +
           "; an offset is from 0 to " + std::to_string(kMaxBytes));
  }
}

// Checks that all values are on the plan's device.
void CheckDevices(const Plan& plan) {
  if (plan.streams.empty()) return;  // A plan without operators has no device.
  const std::string& here = plan.streams[0].device;
  for (const PlannedValue& value : plan.values) {
    const std::string name = Quoted(value.name);
    if (!value.device.value_or("").empty() && *value.device != here) {
      Refuse("value " + name + " lies on " + *value.device + ", where the plan has no stream");
    }
    if (value.copy_of.has_value()) {
      Refuse("value " + name + " is a copy of another value, and both lie on " + here);
    }
  }
}

void CheckTotal(const Plan& plan) {
  int64_t total = 0;
  for (const PlannedValue& value : plan.values) {
    total += value.Nbytes();
    if (total > kMaxBytes) {
      Refuse("the plan's tensors have more than " + std::to_string(kMaxBytes) + " bytes");
    }
  }
}

void CheckOperator(const Plan& plan, int64_t index) {
  const PlannedOperator& op = plan.operators[index];
  const std::string which = "operator " + Quoted(op.name);
  if (op.name.empty()) Refuse("operator " + std::to_string(index) + " has an empty name");
  if (op.kernel.empty() && !op.library.has_value()) Refuse(which + " does not name a kernel");
  if (op.stream < 0 || op.stream >= static_cast<int64_t>(plan.streams.size())) {
    Refuse(which + " is planned on stream " + std::to_string(op.stream) + ", but the plan has " +
           std::to_string(plan.streams.size()) + " streams, numbered from 0");
  }
  const size_t most = std::max(kMaxRepeated, 2 * plan.values.size());
  if (op.inputs.size() > most) {
    Refuse(which + " has " + std::to_string(op.inputs.size()) + " inputs; at most " +
           std::to_string(most) + " are allowed");
  }
  for (int64_t v : op.Arguments()) {
    if (!IsValue(plan, v)) Refuse(which + " reads or writes a value that the plan does not have");
  }
  for (int64_t wait : op.waits) {
    if (wait < 0 || wait >= index) {
      Refuse(which + " waits for an operator that is not planned before it");
    }
  }
  if (std::set<int64_t>(op.waits.begin(), op.waits.end()).size() < op.waits.size()) {
    Refuse(which + " waits twice for the same operator");
  }
  if (op.is_share && !(0 <= op.share && op.share < op.shares && op.shares <= kMaxOperators)) {
    Refuse(which + " is share " + std::to_string(op.share) + " of " + std::to_string(op.shares) +
           "; shares are numbered from 0, and at most " + std::to_string(kMaxOperators) +
           " are allowed");
  }
}

void CheckOperators(const Plan& plan) {
  const auto count = static_cast<int64_t>(plan.operators.size());
  if (count > kMaxOperators) {
    Refuse("the plan has " + std::to_string(count) + " operators; at most " +
           std::to_string(kMaxOperators) + " are allowed");
  }
  std::set<std::string> names;
  for (int64_t i = 0; i < count; ++i) {
    CheckOperator(plan, i);
    if (!names.insert(plan.operators[i].name).second) {
      Refuse("two operators are called " + Quoted(plan.operators[i].name) +
             "; names must be unique");
    }
  }
}

void CheckInterface(const Plan& plan) {
  std::set<std::string> names;
  for (const std::vector<int64_t>* list : {&plan.inputs, &plan.outputs}) {
    for (int64_t v : *list) {
      if (!IsValue(plan, v)) {
        Refuse("an input or output of the model is not among the plan's values");
      }
      const PlannedValue& value = plan.values[v];
      if (value.layout != Layout::kPlain) {
        Refuse(Quoted(value.name) + ", an input or output of the model, is " +
               NameOf(value.layout) + "; it must be plain");
      }
      if (value.name.find('\0') != std::string::npos) {
        Refuse(Quoted(value.name.c_str()) +
               ", an input or output of the model, has a zero byte in "
               "its name");
      }
    }
  }
  for (int64_t v : plan.inputs) {
    const PlannedValue& value = plan.values[v];
    if (value.storage != Storage::kInput) {
      Refuse("input " + Quoted(value.name) + " of the model is planned as " +
             NameOf(value.storage) + "; it must be an `input`, and no copy");
    }
    if (!names.insert(value.name).second) {
      Refuse("two inputs of the model are called " + Quoted(value.name));
    }
  }
}

void CheckAliases(const Plan& plan) {
  const int64_t alignment = plan.Gpu().has_value() ? kGpuPartAlignment : kTensorAlignment;
  for (const PlannedValue& value : plan.values) {
    if (value.storage != Storage::kAlias) {
      if (value.alias_of.has_value()) {
        Refuse(std::string(NameOf(value.storage)) + " " + Quoted(value.name) +
               " is an alias too; a value either has storage or is an alias");
      }
      continue;
    }
    const int64_t root = value.alias_of.value_or(-1);
    if (!IsValue(plan, root) || plan.values[root].storage == Storage::kAlias) {
      Refuse("value " + Quoted(value.name) + " is not an alias of a value that has storage");
    }
    const int64_t begin = value.offset.value_or(0);
    if (begin % alignment != 0 || begin + value.Nbytes() > plan.values[root].Nbytes()) {
      Refuse("value " + Quoted(value.name) + " of " + std::to_string(value.Nbytes()) +
             " bytes at " + std::to_string(begin) +
             " is not part of the value that it aliases, which has " +
             std::to_string(plan.values[root].Nbytes()) + " bytes");
    }
  }
  for (int64_t v : plan.outputs) {
    if (plan.values[plan.RootOf(v)].storage == Storage::kArena) {
      Refuse("output " + Quoted(plan.values[v].name) +
             " of the model is planned in the arena, where operators may write over it");
    }
  }
}

// Whether both operators run the same kernel, and this kernel can be divided into shares.
bool HaveOneKernel(const PlannedOperator& a, const PlannedOperator& b) {
  if (a.kernel != b.kernel || a.library != b.library) return false;
  if (!a.library.has_value()) return true;
  return a.description != nullptr && b.description != nullptr && a.description->HasShares() &&
         Describe(*a.description) == Describe(*b.description);
}

// Checks operators that write the same bytes: they must be all the shares of one kernel.
void CheckShares(const std::string& value, const std::vector<const PlannedOperator*>& writers) {
  const PlannedOperator& first = *writers[0];
  if (writers.size() == 1 && !first.is_share) return;
  bool is_right = true;
  std::vector<bool> found(writers.size());
  for (const PlannedOperator* op : writers) {
    is_right = is_right && op->is_share && op->shares == static_cast<int64_t>(writers.size()) &&
               !found[op->share] && HaveOneKernel(*op, first) && op->inputs == first.inputs &&
               op->outputs == first.outputs;
    if (!is_right) break;
    found[op->share] = true;
  }
  if (is_right) return;
  std::string names;
  for (const PlannedOperator* op : writers) names += (names.empty() ? "" : ", ") + Quoted(op->name);
  Refuse("operators " + names + " write " + Quoted(value) +
         ", and are not the shares of one kernel");
}

// Checks that every byte of each computed value is written, either by one operator or by one part
// of a divided operator.
void CheckWriters(const Plan& plan) {
  using Bytes = std::pair<int64_t, int64_t>;
  std::map<int64_t, std::map<Bytes, std::vector<const PlannedOperator*>>> written;
  for (const PlannedOperator& op : plan.operators) {
    for (int64_t v : op.outputs) {
      const Span span = SpanOf(plan, v);
      written[span.root][{span.begin, span.end}].push_back(&op);
    }
  }
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const PlannedValue& value = plan.values[v];
    const auto found = written.find(static_cast<int64_t>(v));
    const bool is_written = found != written.end();
    if (value.storage == Storage::kInput || value.storage == Storage::kWeight) {
      if (is_written) {
        Refuse(std::string("an operator writes ") + NameOf(value.storage) + " " +
               Quoted(value.name) + ", which operators may only read");
      }
      continue;
    }
    if (value.storage == Storage::kAlias) continue;
    if (!is_written) Refuse("no operator writes value " + Quoted(value.name));
    int64_t reached = 0;
    for (const auto& [bytes, writers] : found->second) {
      if (bytes.first < reached) {
        Refuse("operator " + Quoted(writers[0]->name) + " writes over bytes of " +
               Quoted(value.name) + " that another operator wrote");
      }
      if (bytes.first > reached) break;
      CheckShares(value.name, writers);
      reached = bytes.second;
    }
    if (reached != value.Nbytes()) {
      Refuse("no operator writes value " + Quoted(value.name) + " from byte " +
             std::to_string(reached) + " of " + std::to_string(value.Nbytes()) + " on");
    }
  }
}

void CheckArena(const Plan& plan) {
  if (plan.has_arenas) Refuse("the plan runs on one device, and has arenas by name");
  int64_t most = 0;
  for (const PlannedValue& value : plan.values) {
    if (value.storage != Storage::kArena) continue;
    if (!value.offset.has_value()) {
      Refuse("value " + Quoted(value.name) + " has no offset in the arena");
    }
    if (*value.offset % kTensorAlignment != 0) {
      Refuse("value " + Quoted(value.name) + " lies at " + std::to_string(*value.offset) +
             ", which is not a multiple of " + std::to_string(kTensorAlignment));
    }
    most += (value.Nbytes() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  if (plan.arena_bytes < 0 || plan.arena_bytes > most) {
    Refuse("the arena has " + std::to_string(plan.arena_bytes) + " bytes; it must have 0 to " +
           std::to_string(most) + " bytes, which all values in it have together");
  }
  for (const PlannedValue& value : plan.values) {
    if (value.storage == Storage::kArena && *value.offset + value.Nbytes() > plan.arena_bytes) {
      Refuse("value " + Quoted(value.name) + " ends at byte " +
             std::to_string(*value.offset + value.Nbytes()) + " of an arena of " +
             std::to_string(plan.arena_bytes) + " bytes");
    }
  }
}

// Checks that each operator comes after all operators that write its inputs.
void CheckReaders(const Plan& plan) {
  struct Write {
    int64_t begin, end, op;
  };
  std::map<int64_t, std::vector<Write>> written;
  for (size_t i = 0; i < plan.operators.size(); ++i) {
    for (int64_t v : plan.operators[i].outputs) {
      const Span span = SpanOf(plan, v);
      written[span.root].push_back({span.begin, span.end, static_cast<int64_t>(i)});
    }
  }
  for (size_t i = 0; i < plan.operators.size(); ++i) {
    for (int64_t v : plan.operators[i].inputs) {
      const Span span = SpanOf(plan, v);
      const auto found = written.find(span.root);
      if (found == written.end()) continue;
      for (const Write& write : found->second) {
        if (write.begin >= span.end || span.begin >= write.end) continue;
        if (write.op < static_cast<int64_t>(i)) continue;
        Refuse("operator " + Quoted(plan.operators[i].name) + " reads what " +
               Quoted(plan.operators[write.op].name) + " writes, and is not planned after it");
      }
    }
  }
}

}  // namespace

Span SpanOf(const Plan& plan, int64_t value) {
  const PlannedValue& stored = plan.values[value];
  if (!stored.alias_of.has_value()) return {value, 0, stored.Nbytes()};
  const int64_t begin = stored.offset.value_or(0);
  return {*stored.alias_of, begin, begin + stored.Nbytes()};
}

void CheckBounds(const Plan& plan) {
  CheckStreams(plan);
  for (const PlannedValue& value : plan.values) CheckValue(value);
  CheckTotal(plan);
  CheckOperators(plan);
  CheckInterface(plan);
  CheckAliases(plan);
  CheckWriters(plan);
  CheckDevices(plan);
  CheckArena(plan);
  CheckLibraryOperators(plan);
  CheckReaders(plan);
}

void CheckPlan(const Plan& plan) {
  CheckBounds(plan);
  CheckOrder(plan);
}

}  // namespace tvm_interop
