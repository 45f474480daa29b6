#ifndef RUNTIME_CPU_TOPOLOGY_H_
#define RUNTIME_CPU_TOPOLOGY_H_

#include <vector>

namespace tvm_interop {

// The logical CPUs that the calling thread may run on, one of each physical core first, hyperthread
// siblings after them; ascending within both parts.
std::vector<int> AllowedCpus();

// How many different physical cores the calling thread may run on.
int AllowedCores();

// Confines the calling thread to `cpus`. Returns false where the system refuses.
bool PinThisThread(const std::vector<int>& cpus);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_TOPOLOGY_H_
