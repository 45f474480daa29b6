#ifndef PASSES_SCHEDULERS_PACK_GROUPS_H_
#define PASSES_SCHEDULERS_PACK_GROUPS_H_

#include <vector>

namespace tvm_interop {

// Packs the groups of a stage onto streams, and returns the stream of each group. The groups are
// placed by descending length, each onto the stream with the shortest total length so far (Graham's
// LPT). Ties go to the lowest group and the lowest stream.
std::vector<int> PackGroups(const std::vector<double>& group_us, int num_streams);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_PACK_GROUPS_H_
