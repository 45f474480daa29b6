#include "passes/schedulers/pack_groups.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "passes/graph/error.h"

namespace tvm_interop {

std::vector<int> PackGroups(const std::vector<double>& group_us, int num_streams) {
  if (num_streams < 1) {
    throw ScheduleError("cannot pack groups onto " + std::to_string(num_streams) +
                        " streams; give at least 1");
  }
  std::vector<int> by_length(group_us.size());
  std::iota(by_length.begin(), by_length.end(), 0);
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](int a, int b) { return group_us[a] > group_us[b]; });
  std::vector<double> load(std::min<size_t>(num_streams, group_us.size()));
  std::vector<int> stream(group_us.size());
  for (int group : by_length) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += group_us[group];
    stream[group] = static_cast<int>(least - load.begin());
  }
  return stream;
}

}  // namespace tvm_interop
