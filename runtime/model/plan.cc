#include "runtime/model/plan.h"

#include <map>

#include "runtime/core/names.h"
#include "runtime/model/description_reader.h"
#include "runtime/model/json_reader.h"

namespace tvm_interop {
namespace {

PlannedValue ReadValue(const JsonValue& value) {
  static const std::map<std::string, Storage> storages{{"input", Storage::kInput},
                                                       {"weight", Storage::kWeight},
                                                       {"output", Storage::kOutput},
                                                       {"arena", Storage::kArena},
                                                       {"alias", Storage::kAlias}};
  JsonObject object(value);
  PlannedValue read;
  read.name = object.At("name").Text();
  read.shape = object.At("shape").Ints();
  read.dtype = object.At("dtype").Text();
  read.type = FindElementType(read.dtype);
  const JsonValue storage = object.At("storage");
  const auto found = storages.find(storage.Text());
  if (found == storages.end()) storage.Refuse("`" + storage.Text() + "` is not a kind of storage");
  read.storage = found->second;
  if (const auto offset = object.Find("offset")) read.offset = offset->IntOrNull();
  if (const auto alias_of = object.Find("alias_of")) read.alias_of = alias_of->IntOrNull();
  if (const auto layout = object.Find("layout")) {
    const auto found_layout = Layouts().find(layout->Text());
    if (found_layout == Layouts().end()) layout->Refuse("`" + layout->Text() + "` is not a layout");
    read.layout = found_layout->second;
  }
  const auto device = object.Find("device");
  if (device.has_value() && !device->is_null()) read.device = device->Text();
  if (const auto copy_of = object.Find("copy_of")) read.copy_of = copy_of->IntOrNull();
  object.RefuseOthers();
  return read;
}

Stream ReadStream(const JsonValue& value) {
  JsonObject object(value);
  Stream stream{object.At("device").Text(), object.At("threads").Int(), false};
  if (const auto urgent = object.Find("urgent")) stream.urgent = urgent->Bool();
  object.RefuseOthers();
  return stream;
}

PlannedOperator ReadOperator(const JsonValue& value) {
  JsonObject object(value);
  PlannedOperator op;
  op.name = object.At("name").Text();
  op.kernel = object.At("kernel").Text();
  op.inputs = object.At("inputs").Ints();
  op.outputs = object.At("outputs").Ints();
  op.stream = object.At("stream").Int();
  op.waits = object.At("waits").Ints();
  const auto library = object.Find("library");
  if (library.has_value() && !library->is_null()) op.library = library->Text();
  const auto description = object.Find("description");
  if (description.has_value() && !description->is_null()) {
    op.description = ReadDescription(*description, op.library.has_value(), &op.described_types);
  }
  const auto share = object.Find("share");
  if (share.has_value() && !share->is_null()) {
    const std::vector<int64_t> numbers = share->Ints();
    if (numbers.size() != 2) share->Refuse("a share is two numbers");
    op.is_share = true;
    op.share = numbers[0];
    op.shares = numbers[1];
  }
  object.RefuseOthers();
  return op;
}

}  // namespace

const ElementType* FindElementType(const std::string& name) {
  // The codes of DLPack: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool.
  static const std::map<std::string, ElementType> types = [] {
    std::map<std::string, ElementType> all;
    const auto add = [&](const std::string& type, int code, int bits) {
      all[type] = {type, static_cast<uint8_t>(code), static_cast<uint8_t>(bits)};
    };
    for (int bits : {8, 16, 32, 64}) {
      add("int" + std::to_string(bits), 0, bits);
      add("uint" + std::to_string(bits), 1, bits);
    }
    for (int bits : {16, 32, 64}) add("float" + std::to_string(bits), 2, bits);
    add("bfloat16", 4, 16);
    add("bool", 6, 8);
    return all;
  }();
  const auto found = types.find(name);
  return found == types.end() ? nullptr : &found->second;
}

const char* NameOf(Storage storage) {
  switch (storage) {
    case Storage::kInput:
      return "input";
    case Storage::kWeight:
      return "weight";
    case Storage::kOutput:
      return "output";
    case Storage::kArena:
      return "arena";
    case Storage::kAlias:
      return "alias";
  }
  return "";
}

int64_t BoundedProduct(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kMaxBytes / b ? kMaxBytes + 1 : a * b;
}

int64_t BoundedElements(const std::vector<int64_t>& shape) {
  int64_t number = 1;
  bool is_empty = false;
  for (int64_t dim : shape) {
    is_empty = is_empty || dim == 0;
    number = BoundedProduct(number, dim);
  }
  return is_empty ? 0 : number;
}

std::vector<int64_t> PlannedValue::StoredShape() const {
  const int64_t block = BlockOf(layout);
  if (layout == Layout::kPlain || shape[1] % block == 0) return shape;
  return {shape[0], (shape[1] + block - 1) / block, shape[2], shape[3], block};
}

int64_t PlannedValue::Nbytes() const {
  return BoundedProduct(BoundedElements(StoredShape()), type->nbytes());
}

std::vector<int64_t> PlannedOperator::Arguments() const {
  std::vector<int64_t> all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  return all;
}

bool Plan::UsesLibrary() const {
  for (const PlannedOperator& op : operators) {
    if (op.library.has_value()) return true;
  }
  return false;
}

std::optional<int> Plan::Gpu() const {
  static const std::string prefix = "cuda:";
  if (streams.empty() || streams[0].device.rfind(prefix, 0) != 0) return std::nullopt;
  return std::stoi(streams[0].device.substr(prefix.size()));
}

Plan ReadPlan(const std::string& name, const std::string& text) {
  const Json json = ParseJson(name, text);
  JsonObject object(JsonValue(json, name));
  Plan plan;
  for (const JsonValue& stream : object.At("streams").List()) {
    plan.streams.push_back(ReadStream(stream));
  }
  for (const JsonValue& value : object.At("values").List()) plan.values.push_back(ReadValue(value));
  for (const JsonValue& op : object.At("operators").List()) {
    plan.operators.push_back(ReadOperator(op));
  }
  plan.inputs = object.At("inputs").Ints();
  plan.outputs = object.At("outputs").Ints();
  plan.arena_bytes = object.At("arena_bytes").Int();
  plan.parallel_kernels = object.At("parallel_kernels").Bool();
  if (const auto arenas = object.Find("arenas")) {
    JsonObject devices(*arenas);
    for (const std::string& device : devices.Others()) {
      devices.At(device.c_str()).Int();
      plan.has_arenas = true;
    }
  }
  const auto format = object.Find("format");
  if (format.has_value() && format->Text() != "tvm_interop.plan")
    format->Refuse("it is not a plan");
  const auto version = object.Find("version");
  if (version.has_value() && version->Int() != 1) version->Refuse("it is not 1");
  object.RefuseOthers();
  return plan;
}

}  // namespace tvm_interop
