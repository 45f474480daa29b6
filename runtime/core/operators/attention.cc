#include "runtime/core/operators/attention.h"

#include <cstdint>
#include <vector>

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Attention> kRegistered("attention");

}  // namespace

std::string Attention::WhyWrong() const {
  const std::vector<int64_t>&queries = shapes[0], &keys = shapes[1], &values = shapes[2];
  const std::vector<int64_t>& result = shapes.back();
  const size_t axes = queries.size();
  if (axes < 2 || keys.size() != axes || values.size() != axes || result.size() != axes) {
    return "needs queries, keys, values and a result with the same number of axes, at least 2";
  }
  const std::vector<int64_t> heads(queries.begin(), queries.end() - 2);
  const int64_t rows = queries[axes - 2], depth = queries[axes - 1];
  const int64_t positions = values[axes - 2], width = values[axes - 1];
  const auto of_heads = [&](int64_t before_last, int64_t last) {
    std::vector<int64_t> shape = heads;
    shape.insert(shape.end(), {before_last, last});
    return shape;
  };
  const std::vector<int64_t> expected =
      keys_by_position ? of_heads(positions, depth) : of_heads(depth, positions);
  if (keys != expected || values != of_heads(positions, width) || result != of_heads(rows, width)) {
    return "cannot make " + Text(result) + " of queries " + Text(queries) + ", keys " + Text(keys) +
           " and values " + Text(values);
  }
  if (!has_mask) return "";
  const std::vector<int64_t>& mask = shapes[3];
  const std::vector<int64_t> scores = of_heads(rows, positions);
  bool fits = mask.size() == axes;
  for (size_t i = 0; fits && i < axes; ++i) fits = mask[i] == 1 || mask[i] == scores[i];
  return fits ? "" : "cannot add a mask " + Text(mask) + " to scores " + Text(scores);
}

void Attention::VisitFields(Fields* fields) {
  fields->Visit("scale", &scale);
  fields->Visit("has_mask", &has_mask);
  fields->Visit("keys_by_position", &keys_by_position);
}

}  // namespace tvm_interop
