#ifndef RUNTIME_CPU_QUOTA_H_
#define RUNTIME_CPU_QUOTA_H_

#include <string>

namespace tvm_interop {

// Cores' worth of time that the control groups of this process grant it (version 2 of Linux's
// control groups, or 1): the least of its own group's and those of the groups around it. Infinite
// where there is no limit. `root` is where /proc and /sys are.
double CpuQuota(const std::string& root);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_QUOTA_H_
