#ifndef PASSES_SCHEDULERS_PACK_GROUPS_H_
#define PASSES_SCHEDULERS_PACK_GROUPS_H_

#include <vector>

namespace tvm_interop {

// The stream of each group if a stage has more groups than streams. The longest group goes first,
// onto the least loaded stream (Graham's LPT). Ties go to the lowest group and the lowest stream.
std::vector<int> PackGroups(const std::vector<double>& group_us, int num_streams);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_PACK_GROUPS_H_
