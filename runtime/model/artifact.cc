#include "runtime/model/artifact.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/core/shapes.h"
#include "runtime/model/check_plan.h"
#include "runtime/model/check_ranges.h"
#include "runtime/model/check_schedule.h"
#include "runtime/model/counted.h"
#include "runtime/model/error.h"
#include "runtime/model/npz.h"
#include "runtime/model/shared_weights.h"
#include "runtime/model/string_tensors.h"
#include "runtime/model/tar.h"

namespace tvm_interop {
namespace {

constexpr int kMaxShapes = 64;
constexpr int kFirstWithShapes = 3;  // the first version whose files may hold several shapes

using Members = std::map<std::string, Member>;

std::string Prefix(int shape) { return "shapes/" + std::to_string(shape) + "/"; }

// The largest allowed size of a member whose data is kept in memory; -1 for other members.
int64_t MostBytes(const std::string& name) {
  static const std::map<std::string, int64_t> kept{
      {"manifest.json", int64_t{1} << 24}, {"plan.json", int64_t{1} << 28},
      {"schedule.json", int64_t{1} << 28}, {"fallback.json", int64_t{1} << 28},
      {"kernels.so", int64_t{1} << 32},    {"weights.npz", int64_t{1} << 36}};
  std::string own = name;
  for (int i = 1; i < kMaxShapes; ++i) {
    if (own.rfind(Prefix(i), 0) == 0) own = own.substr(Prefix(i).size());
  }
  const auto found = kept.find(own);
  return found == kept.end() ? -1 : found->second;
}

// The folders of an artifact that hold the second shape and all later shapes. The list ends before
// the first folder that is missing.
std::vector<std::string> PrefixesIn(const Members& members) {
  std::vector<std::string> found;
  for (int i = 1; i < kMaxShapes && members.count(Prefix(i) + "plan.json") > 0; ++i) {
    found.push_back(Prefix(i));
  }
  return found;
}

// Reads the manifest, and checks that all other members have the digests it lists.
Manifest CheckedManifest(const Members& members) {
  const auto found = members.find("manifest.json");
  if (found == members.end()) {
    throw ArtifactError(
        "it is a tar file but not an artifact of tvm_interop: it has no `manifest.json`",
        kCopyAgain);
  }
  Manifest manifest = ReadManifest("manifest.json", found->second.data);
  std::set<std::string> required{"plan.json", "schedule.json", "kernels.so",
                                 manifest.version == 1 ? "weights.npz" : "weights.bin"};
  std::set<std::string> allowed{"fallback.json"};
  if (manifest.version >= kFirstWithShapes) {
    for (const std::string& prefix : PrefixesIn(members)) {
      for (const char* name : {"manifest.json", "plan.json", "schedule.json", "kernels.so"}) {
        required.insert(prefix + name);
      }
      allowed.insert(prefix + "fallback.json");
    }
  }
  allowed.insert(required.begin(), required.end());
  std::set<std::string> names = required;
  for (const auto& entry : manifest.sha256) names.insert(entry.first);
  for (const auto& entry : members) names.insert(entry.first);
  names.erase("manifest.json");
  for (const std::string& name : names) {
    if (allowed.count(name) == 0) {
      throw ArtifactError("it has a member `" + name + "`, and artifacts have no such member");
    }
    const auto member = members.find(name);
    const auto digest = manifest.sha256.find(name);
    if (member == members.end() || digest == manifest.sha256.end() ||
        member->second.sha256 != digest->second) {
      throw ArtifactError("its `" + name + "` is " +
                          (member == members.end() ? "missing" : "damaged"));
    }
  }
  return manifest;
}

using Interface = std::vector<std::tuple<std::string, std::vector<int64_t>, std::string>>;

Interface InterfaceOf(const Plan& plan, const std::vector<int64_t>& values) {
  Interface found;
  for (int64_t v : values) {
    const PlannedValue& value = plan.values[v];
    found.emplace_back(value.name, value.shape, value.dtype);
  }
  return found;
}

// The model's inputs and then its outputs.
Interface InterfaceOf(const Plan& plan) {
  Interface found = InterfaceOf(plan, plan.inputs);
  for (auto& output : InterfaceOf(plan, plan.outputs)) found.push_back(std::move(output));
  return found;
}

void CheckFallback(const Plan& fallback, const Plan& plan) {
  for (const PlannedOperator& op : fallback.operators) {
    if (op.library.has_value()) {
      throw ArtifactError("operator `" + op.name + "` of `fallback.json` needs kernel library `" +
                          *op.library + "`, and a fallback must need none");
    }
  }
  if (InterfaceOf(fallback, fallback.inputs) != InterfaceOf(plan, plan.inputs)) {
    throw ArtifactError("the inputs of `fallback.json` are not those of `plan.json`");
  }
  if (InterfaceOf(fallback, fallback.outputs) != InterfaceOf(plan, plan.outputs)) {
    throw ArtifactError("the outputs of `fallback.json` are not those of `plan.json`");
  }
}

void FindWeights(const Plan& plan, const Manifest& manifest, const Memory& block,
                 std::map<int64_t, const char*>* weights) {
  const auto size = static_cast<int64_t>(block.nbytes());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const PlannedValue& value = plan.values[i];
    if (value.storage != Storage::kWeight) continue;
    const auto v = static_cast<int64_t>(i);
    const auto offset = manifest.weights.find(v);
    if (offset == manifest.weights.end()) {
      throw ArtifactError("there is no data for weight `" + value.name + "`");
    }
    const int64_t begin = offset->second;
    if (begin < 0 || begin % kTensorAlignment != 0 || begin > size ||
        value.Nbytes() > size - begin) {
      throw ArtifactError("weight `" + value.name + "` of " + std::to_string(value.Nbytes()) +
                          " bytes cannot begin at byte " + std::to_string(begin) + " of " +
                          std::to_string(size) +
                          ": the place is not a multiple of 64, or the weight does not fit there");
    }
    (*weights)[v] = block.data() + begin;
  }
}

// A weight that both plans have must be the same tensor in both, because the plans share the
// weights' data.
void CheckSharedWeights(const Plan& plan, const Plan& fallback) {
  const size_t count = std::min(plan.values.size(), fallback.values.size());
  for (size_t i = 0; i < count; ++i) {
    const PlannedValue &one = plan.values[i], &other = fallback.values[i];
    if (one.storage != Storage::kWeight || other.storage != Storage::kWeight) continue;
    if (one.shape != other.shape || one.dtype != other.dtype) {
      throw ArtifactError("weight `" + one.name + "` is " + one.dtype + Text(one.shape) +
                          ", and `fallback.json` says " + other.dtype + Text(other.shape));
    }
  }
}

ShapeModel ReadShape(Members* members, const std::string& prefix, const Manifest& manifest,
                     const Memory& block) {
  ShapeModel model;
  const auto text = [&](const char* name) -> const std::string& {
    return members->at(prefix + name).data;
  };
  model.plan = ReadPlan(prefix + "plan.json", text("plan.json"));
  CheckPlan(model.plan);
  FindWeights(model.plan, manifest, block, &model.weights);
  if (members->count(prefix + "fallback.json") > 0) {
    model.fallback = ReadPlan(prefix + "fallback.json", text("fallback.json"));
    CheckPlan(*model.fallback);
    CheckFallback(*model.fallback, model.plan);
    CheckSharedWeights(model.plan, *model.fallback);
    FindWeights(*model.fallback, manifest, block, &model.weights);
  }
  CheckSchedule(prefix + "schedule.json", text("schedule.json"), model.plan);
  model.kernels = std::move(members->at(prefix + "kernels.so").data);
  model.cpu_features = manifest.cpu_features;
  model.unaligned_inputs = manifest.unaligned_inputs;
  return model;
}

// Reads the weights of an artifact of version 1, and writes where they begin into `manifest`.
std::shared_ptr<const Memory> ReadOldWeights(const Members& members, Manifest* manifest) {
  std::map<int64_t, PlannedValue> wanted;
  for (const char* name : {"fallback.json", "plan.json"}) {
    const auto text = members.find(name);
    if (text == members.end()) continue;
    const Plan plan = ReadPlan(name, text->second.data);
    CheckPlan(plan);
    for (size_t v = 0; v < plan.values.size(); ++v) {
      if (plan.values[v].storage == Storage::kWeight) {
        wanted[static_cast<int64_t>(v)] = plan.values[v];
      }
    }
  }
  manifest->weights.clear();
  return ReadNpz(members.at("weights.npz").data, wanted, &manifest->weights);
}

void CheckShapes(const std::vector<ShapeModel>& shapes) {
  std::map<std::vector<std::vector<int64_t>>, size_t> known;
  const auto without_shapes = [](Interface found) {
    for (auto& entry : found) std::get<1>(entry).clear();
    return found;
  };
  const Plan& first = shapes[0].plan;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Plan& plan = shapes[i].plan;
    for (const auto list : {&Plan::inputs, &Plan::outputs}) {
      if (without_shapes(InterfaceOf(plan, plan.*list)) !=
          without_shapes(InterfaceOf(first, first.*list))) {
        throw ArtifactError("shape " + std::to_string(i) +
                            " has other inputs or outputs than shape 0: they are not of one model");
      }
    }
    std::vector<std::vector<int64_t>> inputs;
    for (int64_t v : plan.inputs) inputs.push_back(plan.values[v].shape);
    const auto [place, is_new] = known.emplace(inputs, i);
    if (!is_new) {
      throw ArtifactError("shapes " + std::to_string(place->second) + " and " + std::to_string(i) +
                          " are the same");
    }
  }
}

void CheckBatchSizes(const std::vector<int64_t>& sizes, const std::vector<ShapeModel>& shapes) {
  if (sizes.empty()) return;
  const std::set<int64_t> different(sizes.begin(), sizes.end());
  if (sizes.size() != shapes.size() || different.size() != sizes.size() || *different.begin() < 1) {
    throw ArtifactError("there are " + std::to_string(sizes.size()) + " batch sizes for " +
                        std::to_string(shapes.size()) +
                        " shapes: there must be one for each, all different and above 0");
  }
  Interface before;
  for (size_t i = 0; i < shapes.size(); ++i) {
    Interface rest = InterfaceOf(shapes[i].plan);
    for (auto& [name, shape, dtype] : rest) {
      if (shape.empty() || shape[0] != sizes[i]) {
        throw ArtifactError("`" + name + "` has shape " + Text(shape) + " for a batch of " +
                            std::to_string(sizes[i]) + ": its first axis must be the batch");
      }
      shape.erase(shape.begin());
      dtype.clear();
    }
    if (i > 0 && rest != before) {
      throw ArtifactError("the shapes of the batch sizes differ in more than the first axis");
    }
    before = rest;
  }
}

}  // namespace

Artifact ReadArtifact(const Source& source, const std::string& sha256) {
  Members members = ReadTar(source, MostBytes, sha256);
  Artifact artifact;
  artifact.manifest = CheckedManifest(members);
  if (artifact.manifest.version == 1) {
    artifact.weight_block = ReadOldWeights(members, &artifact.manifest);
  } else {
    const Member& weights = members.at("weights.bin");
    artifact.weight_block = SharedWeights(source, weights.offset, weights.nbytes, weights.sha256);
  }
  artifact.shapes.push_back(ReadShape(&members, "", artifact.manifest, *artifact.weight_block));
  if (artifact.manifest.version >= kFirstWithShapes) {
    for (const std::string& prefix : PrefixesIn(members)) {
      const std::string name = prefix + "manifest.json";
      const Manifest own = ReadManifest(name, members.at(name).data);
      artifact.shapes.push_back(ReadShape(&members, prefix, own, *artifact.weight_block));
    }
  }
  CheckShapes(artifact.shapes);
  CheckBatchSizes(artifact.manifest.batch_sizes, artifact.shapes);
  std::vector<const Plan*> plans;
  for (const ShapeModel& shape : artifact.shapes) plans.push_back(&shape.plan);
  CheckRanges(artifact.manifest.ranges, artifact.manifest.masks, plans);
  CheckCounted(artifact.manifest, plans);
  CheckStrings(artifact.manifest, plans);
  return artifact;
}

}  // namespace tvm_interop
