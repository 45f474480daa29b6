#ifndef RUNTIME_CPU_TOPOLOGY_H_
#define RUNTIME_CPU_TOPOLOGY_H_

#include <vector>

namespace tvm_interop {

// The logical CPUs that the calling thread may run on, one of each physical core first, hyperthread
// siblings after them; ascending within both parts.
std::vector<int> AllowedCpus();

// How many cores' worth of time this process may use: the different physical cores that the calling
// thread may run on, or the whole cores of the CPU quota of its control groups, where that is less;
// at least one.
int AllowedCores();

// Confines the calling thread to `cpus`, or the thread of this process that has this number.
// Returns false where the system refuses.
bool PinThisThread(const std::vector<int>& cpus);
bool PinThread(int thread, const std::vector<int>& cpus);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_TOPOLOGY_H_
