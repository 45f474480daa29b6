#ifndef PASSES_SCHEDULERS_PACK_GROUPS_H_
#define PASSES_SCHEDULERS_PACK_GROUPS_H_

#include <vector>

namespace tvm_interop {

// The stream of each group when a stage has more groups than streams: longest group first onto the
// least loaded stream (Graham's LPT); ties go to the lowest group, the lowest stream.
std::vector<int> PackGroups(const std::vector<double>& group_us, int num_streams);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_PACK_GROUPS_H_
