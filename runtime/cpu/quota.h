#ifndef RUNTIME_CPU_QUOTA_H_
#define RUNTIME_CPU_QUOTA_H_

#include <string>

namespace tvm_interop {

// Returns the CPU quota of this process's control groups, in cores. It is the smallest quota of the
// process's own group and of the groups that contain it, and infinity if there is no limit.
// Versions 1 and 2 of Linux's control groups are supported. `root` is the directory that contains
// /proc and /sys.
double CpuQuota(const std::string& root);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_QUOTA_H_
