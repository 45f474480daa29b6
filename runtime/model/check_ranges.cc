#include "runtime/model/check_ranges.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "runtime/model/error.h"
#include "runtime/model/rows.h"

namespace tvm_interop {
namespace {

// The shapes of one input or output, for each plan.
using Shapes = std::vector<const std::vector<int64_t>*>;

// Checks that there is one plan for each combination of the sizes of all ranges.
void CheckSizes(const std::vector<RowRange>& ranges, size_t num_plans) {
  bool fits = num_plans > 1;
  size_t combinations = 1;
  for (const RowRange& range : ranges) {
    const std::set<int64_t> different(range.sizes.begin(), range.sizes.end());
    fits =
        fits && range.sizes.size() == num_plans && different.size() > 1 && *different.begin() > 0;
    // Stop multiplying once the product exceeds the number of plans, which is at most 64. So it
    // cannot overflow.
    combinations = std::min(combinations * different.size(), num_plans + 1);
  }
  std::set<std::vector<int64_t>> found;
  for (size_t i = 0; fits && i < num_plans; ++i) {
    std::vector<int64_t> each;
    for (const RowRange& range : ranges) each.push_back(range.sizes[i]);
    found.insert(each);
  }
  if (fits && combinations == num_plans && found.size() == num_plans) return;
  throw ArtifactError("there are " + std::to_string(ranges[0].sizes.size()) +
                      " numbers of rows for " + std::to_string(num_plans) +
                      " shapes: there must be one for each, at least two, all different and "
                      "above 0" +
                      (ranges.size() > 1 ? ", and a shape for each combination" : ""));
}

// Returns whether `axes` is right about the dimensions of a tensor that grow with the ranges.
// `axes[r]` is the dimension that grows with range r, or negative if none does. No two ranges may
// have the same dimension, and no other dimension may grow.
bool Grows(const Shapes& shapes, const std::vector<RowRange>& ranges,
           const std::vector<int>& axes) {
  const std::vector<int64_t>& first = *shapes[0];
  std::set<int> known;
  for (size_t r = 0; r < ranges.size(); ++r) {
    if (axes[r] < 0) continue;
    const auto axis = static_cast<size_t>(axes[r]);
    if (axis >= first.size() || first[axis] <= 0 || first[axis] % ranges[r].sizes[0] != 0) {
      return false;
    }
    if (!known.insert(axes[r]).second) return false;
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    std::vector<int64_t> expected = first;
    for (size_t r = 0; r < ranges.size(); ++r) {
      if (axes[r] < 0) continue;
      int64_t& size = expected[static_cast<size_t>(axes[r])];
      const int64_t each = size / ranges[r].sizes[0];
      if (__builtin_mul_overflow(each, ranges[r].sizes[i], &size)) return false;
    }
    if (expected != *shapes[i]) return false;
  }
  return true;
}

}  // namespace

void CheckRanges(const std::vector<RowRange>& ranges,
                 const std::map<std::string, std::string>& masks,
                 const std::vector<const Plan*>& plans) {
  if (ranges.empty()) return;
  CheckSizes(ranges, plans.size());
  std::set<std::string> can_be_masks;
  for (const auto list : {&Plan::inputs, &Plan::outputs}) {
    for (size_t i = 0; i < (plans[0]->*list).size(); ++i) {
      Shapes shapes;
      for (const Plan* plan : plans) shapes.push_back(&plan->values[(plan->*list)[i]].shape);
      const PlannedValue& value = plans[0]->values[(plans[0]->*list)[i]];
      const std::vector<int> axes = AxesOf(shapes, ranges);
      if (!Grows(shapes, ranges, axes)) {
        throw ArtifactError("`" + value.name +
                            "` does not grow with the number of rows along one dimension" +
                            (ranges.size() > 1 ? " for each range" : ""));
      }
      if (list != &Plan::inputs || axes.back() < 0 || !CanBeMask(value.dtype)) continue;
      int64_t elements = 1, rows = 1;
      for (const int64_t size : value.shape) elements *= size;
      for (size_t r = 0; r < ranges.size(); ++r) rows *= axes[r] < 0 ? 1 : ranges[r].sizes[0];
      const auto mask = masks.find(value.name);
      // A mask with the condition `any` has exactly one element in each row.
      if (mask == masks.end() || mask->second != "any" || elements == rows) {
        can_be_masks.insert(value.name);
      }
    }
  }
  for (const auto& [name, unused] : masks) {
    if (can_be_masks.count(name) == 0) {
      throw ArtifactError("`" + name + "` cannot be a mask: a mask is an input with rows and a " +
                          "type that masks can have; a mask that must be 1 in any row has one " +
                          "element in each row");
    }
  }
}

}  // namespace tvm_interop
