#include "runtime/cpu/quota.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace tvm_interop {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Reads the quota in version 2 of control groups, in cores. The file `cpu.max` holds two values.
// The first is the CPU time for each period in microseconds, or `max` if there is no limit. The
// second is the period in microseconds.
double QuotaOfVersion2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota_us = 0;
  double period_us = 0;
  return file >> quota_us >> period_us && period_us > 0 ? quota_us / period_us : kNoLimit;
}

// Reads the quota in version 1 of control groups, in cores. A quota of -1 means no limit.
double QuotaOfVersion1(const std::string& folder) {
  std::ifstream quota(folder + "/cpu.cfs_quota_us");
  std::ifstream period(folder + "/cpu.cfs_period_us");
  double quota_us = 0;
  double period_us = 0;
  return quota >> quota_us && period >> period_us && quota_us > 0 && period_us > 0
             ? quota_us / period_us
             : kNoLimit;
}

// Returns the smallest quota of the group `path` and all groups that contain it. In a container,
// the path of the process's own group is often not visible. In this case, the group's files are in
// the root folder.
template <typename Quota>
double LeastQuota(const std::string& mount, std::string path, Quota quota) {
  double least = quota(mount);
  while (path.size() > 1) {
    least = std::min(least, quota(mount + path));
    path.resize(path.rfind('/'));
  }
  return least;
}

bool Lists(const std::string& controllers, const std::string& wanted) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == wanted) return true;
  }
  return false;
}

}  // namespace

double CpuQuota(const std::string& root) {
  double least = kNoLimit;
  std::ifstream groups(root + "/proc/self/cgroup");
  // Each line of the file holds a number, controllers and a path, separated by colons. A line for
  // version 2 of control groups names no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const std::string mounts = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      least = std::min({least, LeastQuota(mounts, path, QuotaOfVersion2),
                        LeastQuota(mounts + "/unified", path, QuotaOfVersion2)});
    } else if (Lists(controllers, "cpu")) {
      least = std::min({least, LeastQuota(mounts + "/cpu", path, QuotaOfVersion1),
                        LeastQuota(mounts + "/" + controllers, path, QuotaOfVersion1)});
    }
  }
  return least;
}

}  // namespace tvm_interop
