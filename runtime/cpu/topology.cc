#include "runtime/cpu/topology.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "runtime/cpu/quota.h"

namespace tvm_interop {
namespace {

// Returns a name for the physical core of a logical CPU. The name is the list of the core's logical
// CPUs, so all of them give the same name. If the system does not provide the list, every CPU
// counts as a core of its own.
std::string CoreOf(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
  std::string siblings;
  if (!std::getline(file, siblings)) siblings = "cpu" + std::to_string(cpu);
  return siblings;
}

struct Cpus {
  std::vector<int> first_of_core;
  std::vector<int> siblings;
};

Cpus ReadCpus() {
  Cpus cpus;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  std::set<std::string> seen;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    (seen.insert(CoreOf(cpu)).second ? cpus.first_of_core : cpus.siblings).push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::vector<int> AllowedCpus() {
  Cpus cpus = ReadCpus();
  std::vector<int> all = cpus.first_of_core;
  all.insert(all.end(), cpus.siblings.begin(), cpus.siblings.end());
  return all;
}

int AllowedCores() {
  const double cores = static_cast<double>(ReadCpus().first_of_core.size());
  // Round the quota down. If a process exceeds its quota, the system stops all threads of the
  // process for many milliseconds.
  return std::max(1, static_cast<int>(std::min(cores, CpuQuota("/"))));
}

bool PinThisThread(const std::vector<int>& cpus) { return PinThread(0, cpus); }

bool PinThread(int thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

}  // namespace tvm_interop
