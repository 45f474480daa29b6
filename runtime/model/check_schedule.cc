#include "runtime/model/check_schedule.h"

#include <cmath>
#include <set>
#include <vector>

#include "runtime/model/json_reader.h"

namespace tvm_interop {
namespace {

constexpr int64_t kNewest = 2;

// The operators that the field `operators` lists. Other fields may name only these operators.
using Names = std::set<std::string>;

void CheckNames(const JsonValue& list, const Names& known) {
  for (const JsonValue& name : list.List()) {
    if (known.count(name.Text()) == 0) {
      name.Refuse("`operators` lacks the operator `" + name.Text() + "`");
    }
  }
}

int64_t NotNegative(const JsonValue& value) {
  const int64_t number = value.Int();
  if (number < 0) value.Refuse("the number is below 0");
  return number;
}

void CheckTime(const JsonValue& value) {
  if (!std::isfinite(value.Number())) value.Refuse("the time is not finite");
}

// Returns whether the stage names a device.
bool CheckStage(const JsonValue& value, const Names& known) {
  JsonObject stage(value);
  const JsonValue kind = stage.At("kind");
  if (kind.Text() != "concurrent" && kind.Text() != "merge") {
    kind.Refuse("there is no stage kind `" + kind.Text() + "`");
  }
  stage.At("barrier").Bool();
  for (const JsonValue& given : stage.At("groups").List()) {
    JsonObject group(given);
    const JsonValue stream = group.At("stream");
    if (NotNegative(stream) >= static_cast<int64_t>(known.size())) {
      stream.Refuse("there are not so many operators; streams are numbered from 0");
    }
    CheckNames(group.At("operators"), known);
    group.RefuseOthers();
  }
  const auto device = stage.Find("device");
  stage.RefuseOthers();
  if (!device.has_value() || device->is_null()) return false;
  NotNegative(*device);
  return true;
}

Names ReadNames(const JsonValue& list) {
  Names names;
  for (const JsonValue& name : list.List()) {
    if (!names.insert(name.Text()).second) name.Refuse("the name is listed twice");
  }
  return names;
}

void CheckStages(const JsonValue& value, const Names& known) {
  const std::vector<JsonValue> stages = value.List();
  size_t on_devices = 0;
  for (const JsonValue& stage : stages) on_devices += CheckStage(stage, known) ? 1 : 0;
  if (on_devices != 0 && on_devices != stages.size()) {
    value.Refuse("some stages name a device and others do not");
  }
}

void CheckTimeline(const JsonValue& value, const Names& known) {
  for (const JsonValue& given : value.List()) {
    const std::vector<JsonValue> row = given.List();
    if (row.size() != 4) given.Refuse("an operator, a stream and two times are expected");
    if (known.count(row[0].Text()) == 0) {
      row[0].Refuse("`operators` lacks the operator `" + row[0].Text() + "`");
    }
    NotNegative(row[1]);
    CheckTime(row[2]);
    CheckTime(row[3]);
  }
}

std::optional<JsonValue> GivenField(JsonObject* object, const char* name) {
  const auto value = object->Find(name);
  return value.has_value() && value->is_null() ? std::nullopt : value;
}

void CheckHead(JsonObject* object) {
  const JsonValue format = object->At("format");
  if (format.Text() != "tvm_interop.schedule") format.Refuse("it is not a schedule");
  const JsonValue version = object->At("version");
  if (version.Int() < 1 || version.Int() > kNewest) {
    version.Refuse("this version reads versions 1 to " + std::to_string(kNewest));
  }
  object->At("scheduler").Text();
}

}  // namespace

void CheckSchedule(const std::string& name, const std::string& text, const Plan& plan) {
  const Json json = ParseJson(name, text);
  const JsonValue whole(json, name);
  JsonObject object(whole);
  CheckHead(&object);
  const Names names = ReadNames(object.At("operators"));
  if (const auto makespan = GivenField(&object, "makespan_us")) {
    CheckTime(*makespan);
    if (makespan->Number() < 0) makespan->Refuse("the time is below 0");
  }
  const auto stages = GivenField(&object, "stages");
  const auto streams = GivenField(&object, "streams");
  if (stages.has_value() == streams.has_value()) {
    whole.Refuse("a schedule has either a field `stages` or a field `streams`");
  }
  if (stages.has_value()) CheckStages(*stages, names);
  size_t num_streams = 0;
  for (const JsonValue& stream : streams.has_value() ? streams->List() : std::vector<JsonValue>()) {
    CheckNames(stream, names);
    ++num_streams;
  }
  if (const auto devices = object.Find("devices")) {
    const std::vector<JsonValue> each = devices->List();
    for (const JsonValue& device : each) NotNegative(device);
    if (!each.empty() && each.size() != num_streams) {
      devices->Refuse("the device of each stream is expected");
    }
  }
  if (const auto timeline = GivenField(&object, "timeline")) CheckTimeline(*timeline, names);
  if (const auto order = GivenField(&object, "launch_order")) {
    CheckNames(*order, names);
    if (stages.has_value() && !stages->List().empty()) {
      order->Refuse("stages are launched in turn");
    }
  }
  object.RefuseOthers();
  Names planned;
  for (const PlannedOperator& op : plan.operators) planned.insert(op.name);
  for (const std::string& op : planned) {
    if (names.count(op) == 0) {
      throw ArtifactError("operator `" + op +
                          "` is in the plan alone: the two are not of one model");
    }
  }
  for (const std::string& op : names) {
    if (planned.count(op) == 0) {
      throw ArtifactError("operator `" + op +
                          "` is in the schedule alone: the two are not of one model");
    }
  }
}

}  // namespace tvm_interop
