#include "runtime/model/manifest.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "runtime/model/json_reader.h"

namespace tvm_interop {
namespace {

constexpr int64_t kNewest = 7;

std::vector<std::string> ReadTexts(const JsonValue& value) {
  std::vector<std::string> texts;
  for (const JsonValue& text : value.List()) texts.push_back(text.Text());
  return texts;
}

// Calls `read` for each field of an object whose field names are not known beforehand.
void ForEachField(const JsonValue& value,
                  const std::function<void(const std::string&, const JsonValue&)>& read) {
  if (!value.json().is_object()) value.Refuse("an object is expected");
  for (const auto& item : value.json().items()) {
    read(item.key(), JsonValue(item.value(), value.path() + "." + item.key()));
  }
}

// Reads an integer that is 0 or more.
int64_t Count(const JsonValue& value) {
  const int64_t number = value.Int();
  if (number < 0) value.Refuse("the number must be 0 or more");
  return number;
}

double NotNegative(const JsonValue& value) {
  const double number = value.Number();
  if (!(number >= 0) || !std::isfinite(number)) {
    value.Refuse("the number must be finite, 0 or more");
  }
  return number;
}

void CheckOneOf(const JsonValue& value, const std::vector<std::string>& choices) {
  const std::string text = value.Text();
  for (const std::string& choice : choices) {
    if (text == choice) return;
  }
  value.Refuse("`" + text + "` is not known");
}

// The functions below check the fields that running a model does not need.

void CheckSpeedCheck(const JsonValue& value) {
  JsonObject object(value);
  if (NotNegative(object.At("sequential_us")) == 0) {
    value.Refuse("sequential execution took 0 us; it must take longer");
  }
  NotNegative(object.At("scheduled_us"));
  NotNegative(object.At("noise_ratio"));
  CheckOneOf(object.At("shipped"), {"scheduled", "sequential"});
  if (const auto rounds = object.Find("rounds")) {
    Count(*rounds);
  }
  const auto ratio = object.Find("paired_ratio");
  if (ratio.has_value() && !ratio->is_null()) NotNegative(*ratio);
  const auto interval = object.Find("interval");
  if (interval.has_value() && !interval->is_null()) {
    const std::vector<JsonValue> ends = interval->List();
    if (ends.size() != 2) interval->Refuse("two numbers are expected");
    for (const JsonValue& end : ends) end.Number();
  }
  object.RefuseOthers();
}

void CheckPrecision(const JsonValue& value) {
  JsonObject object(value);
  ReadTexts(object.At("keep_f32"));
  NotNegative(object.At("error"));
  NotNegative(object.At("largest_difference"));
  CheckOneOf(object.At("inputs"), {"random", "given"});
  if (const auto name = object.Find("name")) CheckOneOf(*name, {"bf16"});
  object.RefuseOthers();
}

void CheckQuantised(const JsonValue& value) {
  JsonObject object(value);
  ForEachField(object.At("int8"), [](const std::string&, const JsonValue& n) { Count(n); });
  ForEachField(object.At("floats"), [](const std::string&, const JsonValue& n) { ReadTexts(n); });
  object.RefuseOthers();
}

void CheckKernelCheck(const JsonValue& value) {
  JsonObject object(value);
  for (const char* name : {"checked", "libraries", "too_large"}) {
    if (const auto number = object.Find(name)) Count(*number);
  }
  if (const auto plain = object.Find("plain")) {
    ForEachField(*plain, [](const std::string&, const JsonValue& why) { why.Text(); });
  }
  const auto unchecked = object.Find("unchecked");
  if (unchecked.has_value() && !unchecked->is_null()) unchecked->Text();
  object.RefuseOthers();
}

void CheckMergeCheck(const JsonValue& value) {
  JsonObject object(value);
  ForEachField(object.At("differences"), [](const std::string&, const JsonValue& difference) {
    if (!difference.is_null()) NotNegative(difference);
  });
  const auto unchecked = object.Find("unchecked");
  if (unchecked.has_value() && !unchecked->is_null()) unchecked->Text();
  object.RefuseOthers();
}

void CheckProgramCheck(const JsonValue& value) {
  JsonObject object(value);
  ForEachField(object.At("errors"), [](const std::string&, const JsonValue& error) {
    if (!error.is_null()) NotNegative(error);
  });
  const auto bound = object.Find("bound");
  if (bound.has_value() && !bound->is_null()) NotNegative(*bound);
  if (const auto inputs = object.Find("inputs")) CheckOneOf(*inputs, {"example", "resized"});
  const auto unchecked = object.Find("unchecked");
  if (unchecked.has_value() && !unchecked->is_null()) unchecked->Text();
  object.RefuseOthers();
}

// Checks the form of the entry that says which resources one launch of a GPU kernel needs.
void CheckLaunch(const JsonValue& value) {
  JsonObject object(value);
  object.At("function").Text();
  for (const char* name : {"blocks", "threads"}) {
    const JsonValue number = object.At(name);
    if (Count(number) == 0) number.Refuse("the number must be 1 or more");
  }
  Count(object.At("registers"));
  for (const char* name : {"static_shared_bytes", "dynamic_shared_bytes"}) {
    if (const auto number = object.Find(name)) Count(*number);
  }
  if (const auto assumed = object.Find("assumed")) assumed->Bool();
  object.RefuseOthers();
}

void CheckGpuKernel(const JsonValue& value) {
  JsonObject object(value);
  if (const auto flops = object.Find("flops")) Count(*flops);
  if (const auto launches = object.Find("launches")) {
    ForEachField(*launches, [](const std::string&, const JsonValue& of_arch) {
      for (const JsonValue& launch : of_arch.List()) CheckLaunch(launch);
    });
  }
  object.RefuseOthers();
}

void CheckOptional(JsonObject* object, const char* name, void (*check)(const JsonValue&)) {
  const auto value = object->Find(name);
  if (value.has_value() && !value->is_null()) check(*value);
}

bool IsSha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Adds the range of sizes that `object` describes. `value` is the same object, for error messages.
void ReadRange(JsonObject* object, const JsonValue& value, std::vector<RowRange>* ranges) {
  RowRange range{object->At("dimension").Text(), object->At("sizes").Ints()};
  if (range.sizes.empty()) value.Refuse("there are no sizes");
  for (const RowRange& other : *ranges) {
    if (other.dimension == range.dimension) {
      value.Refuse("there are two ranges of `" + range.dimension + "`");
    }
  }
  ranges->push_back(std::move(range));
}

// `field` is the name of the field with the position of a tensor.
std::vector<StringTensor> ReadStringTensors(const JsonValue& list, const char* field) {
  std::vector<StringTensor> tensors;
  for (const JsonValue& each : list.List()) {
    JsonObject tensor(each);
    tensors.push_back({Count(tensor.At(field)), ReadTexts(tensor.At("strings"))});
    tensor.RefuseOthers();
  }
  return tensors;
}

int64_t WeightIndex(const std::string& key, const JsonValue& value) {
  int64_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc() || end != key.data() + key.size() || index < 0) {
    value.Refuse("`" + key + "` is not an index of a value");
  }
  return index;
}

}  // namespace

Manifest ReadManifest(const std::string& name, const std::string& text) {
  const Json json = ParseJson(name, text);
  const JsonValue value(json, name);
  JsonObject object(value);
  Manifest manifest;
  if (const auto version = object.Find("version")) {
    manifest.version = version->Int();
    if (manifest.version > kNewest) {
      throw ArtifactError("it is an artifact of version " + std::to_string(manifest.version) +
                              ", and this tvm_interop reads versions up to " +
                              std::to_string(kNewest),
                          "upgrade tvm_interop, or compile the model again");
    }
    if (manifest.version < 1) version->Refuse("the version is below 1");
  }
  manifest.tvm_interop_version = object.At("tvm_interop_version").Text();
  object.At("tvm_version").Text();
  manifest.target = object.At("target").Text();
  object.At("scheduler").Text();
  object.At("structural_hash").Text();
  if (const auto features = object.Find("cpu_features")) {
    for (const JsonValue& feature : features->List()) {
      manifest.cpu_features.push_back(feature.Text());
    }
  }
  CheckOptional(&object, "speed_check", CheckSpeedCheck);
  CheckOptional(&object, "precision", CheckPrecision);
  CheckOptional(&object, "quantised", CheckQuantised);
  CheckOptional(&object, "kernel_check", CheckKernelCheck);
  CheckOptional(&object, "merge_check", CheckMergeCheck);
  CheckOptional(&object, "program_check", CheckProgramCheck);
  if (const auto kernels = object.Find("gpu_kernels")) {
    ForEachField(*kernels,
                 [](const std::string&, const JsonValue& kernel) { CheckGpuKernel(kernel); });
  }
  if (const auto not_tried = object.Find("not_tried")) ReadTexts(*not_tried);
  if (const auto any = object.Find("unaligned_inputs")) manifest.unaligned_inputs = any->Bool();
  if (const auto digests = object.Find("sha256")) {
    ForEachField(*digests, [&](const std::string& member, const JsonValue& digest) {
      manifest.sha256[member] = digest.Text();
      if (!IsSha256(digest.Text())) digest.Refuse("the digest is not a SHA-256");
    });
  }
  if (const auto weights = object.Find("weights")) {
    ForEachField(*weights, [&](const std::string& key, const JsonValue& offset) {
      manifest.weights[WeightIndex(key, offset)] = offset.Int();
    });
  }
  if (const auto sizes = object.Find("batch_sizes")) manifest.batch_sizes = sizes->Ints();
  const auto rows = object.Find("row_sizes");
  if (rows.has_value() && !rows->is_null()) {
    JsonObject row_sizes(*rows);
    ReadRange(&row_sizes, *rows, &manifest.ranges);
    if (const auto masks = row_sizes.Find("masks")) {
      for (const JsonValue& each : masks->List()) {
        JsonObject mask(each);
        const JsonValue one_at = mask.At("one_at");
        CheckOneOf(one_at, {"first", "any", "all", "nowhere"});
        manifest.masks[mask.At("input").Text()] = one_at.Text();
        mask.RefuseOthers();
      }
    }
    const auto second = row_sizes.Find("second");
    if (second.has_value() && !second->is_null()) {
      JsonObject range(*second);
      ReadRange(&range, *second, &manifest.ranges);
      range.RefuseOthers();
    }
    row_sizes.RefuseOthers();
  }
  if (const auto counted = object.Find("counted")) {
    for (const JsonValue& each : counted->List()) {
      JsonObject output(each);
      manifest.counted.push_back(
          {Count(output.At("output")), Count(output.At("axis")), Count(output.At("count"))});
      output.RefuseOthers();
    }
  }
  if (const auto inputs = object.Find("string_inputs")) {
    manifest.string_inputs = ReadStringTensors(*inputs, "input");
  }
  if (const auto outputs = object.Find("string_outputs")) {
    manifest.string_outputs = ReadStringTensors(*outputs, "output");
  }
  if (const auto format = object.Find("format")) CheckOneOf(*format, {"tvm_interop.artifact"});
  object.RefuseOthers();
  return manifest;
}

}  // namespace tvm_interop
