#ifndef RUNTIME_MODEL_MANIFEST_H_
#define RUNTIME_MODEL_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tvm_interop {

// A range of a dimension: its name, and the number of rows along it for each shape.
struct RowRange {
  std::string dimension;
  std::vector<int64_t> sizes;
};

// An output whose size along an axis depends on values that the model computes. Its tensor has the
// largest size.
struct CountedOutput {
  int64_t output = 0;  // its position among the plan's outputs
  int64_t axis = 0;
  int64_t count = 0;  // the position, among the plan's outputs, of the number that is the size
};

// An input or output that is a tensor of strings. The plan reads or computes the position of each
// string in `strings`. An input has -1 for a string that is not listed.
struct StringTensor {
  int64_t position = 0;  // among the plan's inputs or outputs
  std::vector<std::string> strings;
};

// The part of `manifest.json` that is needed to run a model. See
// `tvm_interop/artifact/manifest.py`.
struct Manifest {
  int64_t version = 2;
  std::string tvm_interop_version;
  std::string target;
  std::vector<std::string> cpu_features;
  // Whether operators may read inputs at any address that is a multiple of the element's size. If
  // false, the address must be a multiple of `kTensorAlignment`.
  bool unaligned_inputs = false;
  std::map<std::string, std::string> sha256;  // of each other member, by its name
  std::map<int64_t, int64_t> weights;         // where each weight begins, by its value
  std::vector<int64_t> batch_sizes;
  // The ranges that the shapes cover, at most two; see `RowSizes` in
  // `tvm_interop/artifact/manifest.py`.
  std::vector<RowRange> ranges;
  // The masks, which are the inputs that are padded with 0. For each mask, by its name, the
  // position at which it must be 1: `first`, `any`, `all` or `nowhere`; see `RowMask` in
  // `tvm_interop/artifact/manifest.py`.
  std::map<std::string, std::string> masks;
  // The outputs whose sizes depend on values that the model computes. These sizes are the last
  // outputs of the plan, and not outputs of the model.
  std::vector<CountedOutput> counted;
  std::vector<StringTensor> string_inputs, string_outputs;
};

// Reads a manifest. `name` is the name of the text in error messages. Throws ArtifactError if the
// text is not a manifest that this version knows, or if a number in it is out of bounds.
Manifest ReadManifest(const std::string& name, const std::string& text);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_MANIFEST_H_
