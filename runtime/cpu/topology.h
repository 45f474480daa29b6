#ifndef RUNTIME_CPU_TOPOLOGY_H_
#define RUNTIME_CPU_TOPOLOGY_H_

#include <vector>

namespace tvm_interop {

// Returns the logical CPUs that the calling thread may run on. The first CPU of each physical core
// comes first, and the hyperthread siblings follow. Both parts are in ascending order.
std::vector<int> AllowedCpus();

// Returns the number of cores that this process may use, at least 1. It is the smaller of two
// numbers. The first is the number of physical cores that the calling thread may run on. The second
// is the CPU quota of the process's control groups, rounded down to whole cores.
int AllowedCores();

// `PinThisThread` confines the calling thread to `cpus`. `PinThread` does the same for the thread
// of this process with the id `thread`. Both return false if the system refuses.
bool PinThisThread(const std::vector<int>& cpus);
bool PinThread(int thread, const std::vector<int>& cpus);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_TOPOLOGY_H_
