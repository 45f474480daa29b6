#ifndef RUNTIME_MODEL_ARTIFACT_H_
#define RUNTIME_MODEL_ARTIFACT_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/file.h"
#include "runtime/model/manifest.h"
#include "runtime/model/plan.h"

namespace tvm_interop {

// A compiled model for one shape of its inputs.
struct ShapeModel {
  Plan plan;
  // The plan that runs if the kernel library of `plan` is missing. It needs no kernel library.
  std::optional<Plan> fallback;
  std::vector<std::string> cpu_features;
  bool unaligned_inputs = false;           // see `Manifest`
  std::string kernels;                     // the bytes of the shared library
  std::map<int64_t, const char*> weights;  // the data of each weight, by its value
};

// A compiled model, as `tvm_interop.compile` writes it into one file. The format is described in
// `tvm_interop/artifact/artifact.py`.
struct Artifact {
  Manifest manifest;
  std::vector<ShapeModel> shapes;              // in the order of the file; at least one
  std::shared_ptr<const Memory> weight_block;  // the memory of all weights
};

// Reads an artifact and checks everything in it but the machine code, before anything is used.
// `sha256` is the digest that the whole source must have, in hexadecimal, or "" for any. Throws
// ArtifactError; throws ModelError with `kUnsupported` for a model that this library cannot run.
Artifact ReadArtifact(const Source& source, const std::string& sha256);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_ARTIFACT_H_
