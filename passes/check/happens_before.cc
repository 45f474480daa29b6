#include "passes/check/happens_before.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

namespace tvm_interop::check {
namespace {

enum State : char { kNew, kOpen, kDone };

// The largest size that the happens-before relation may have: 256 MiB. The size is counted in
// 32-bit words, over all rows of `known_` together.
constexpr size_t kMostWords = size_t{1} << 26;

}  // namespace

HappensBefore::HappensBefore(const std::vector<int>& stream_of,
                             const std::vector<std::vector<int>>& waits)
    : sources_(waits) {
  const size_t n = stream_of.size();
  std::unordered_map<int, uint32_t> numbers;
  std::vector<int> last;
  std::vector<uint32_t> length;
  for (size_t op = 0; op < n; ++op) {
    const uint32_t stream =
        numbers.emplace(stream_of[op], static_cast<uint32_t>(last.size())).first->second;
    if (stream == last.size()) {
      last.push_back(-1);
      length.push_back(0);
    }
    if (last[stream] >= 0) sources_[op].push_back(last[stream]);
    last[stream] = static_cast<int>(op);
    stream_.push_back(stream);
    place_.push_back(length[stream]++);
  }
  const size_t words = (n + 31) / 32;
  has_counts_ = last.size() <= words;
  width_ = has_counts_ ? last.size() : words;
  if (n > 0 && width_ > kMostWords / n) {
    throw std::length_error(
        "too many operators and streams: its happens-before relation takes more than 256 MiB; "
        "check parts of the program, or use fewer streams");
  }
  Search();
}

// A depth-first search that goes from each operator to the operators that must end before it. An
// operator is done when its row of the relation is complete. This requires that all operators
// before it are done.
void HappensBefore::Search() {
  known_.resize(sources_.size() * width_);
  std::vector<State> state(sources_.size(), kNew);
  // The operators on the current path of the search. Each comes with a count: how many of its
  // sources (the operators that it waits for) are done.
  std::vector<std::pair<int, size_t>> path;
  for (size_t start = 0; start < sources_.size(); ++start) {
    if (state[start] == kNew) path.emplace_back(start, 0);
    while (!path.empty()) {
      const int op = path.back().first;
      state[op] = kOpen;
      if (path.back().second == sources_[op].size()) {
        state[op] = kDone;
        order_.push_back(op);
        path.pop_back();
        continue;
      }
      const int source = sources_[op][path.back().second];
      if (state[source] == kOpen) return SetCircle(path, source);
      if (state[source] == kNew) {
        path.emplace_back(source, 0);
        continue;
      }
      Learn(op, source);
      ++path.back().second;
    }
  }
}

void HappensBefore::Learn(int op, int source) {
  uint32_t* to = &known_[static_cast<size_t>(op) * width_];
  const uint32_t* from = Row(source);
  if (has_counts_) {
    for (size_t s = 0; s < width_; ++s) to[s] = std::max(to[s], from[s]);
    to[stream_[source]] = std::max(to[stream_[source]], place_[source] + 1);
  } else {
    for (size_t w = 0; w < width_; ++w) to[w] |= from[w];
    to[source / 32] |= uint32_t{1} << (source % 32);
  }
}

void HappensBefore::SetCircle(const std::vector<std::pair<int, size_t>>& path, int source) {
  // Each operator on the path waits for the next operator on the path, and the last one waits for
  // `source`. So the part of the path from `source` on is the cycle. The cycle is stored in reverse
  // order.
  for (auto place = path.rbegin(); circle_.empty() || circle_.back() != source; ++place) {
    circle_.push_back(place->first);
  }
  std::rotate(circle_.begin(), std::min_element(circle_.begin(), circle_.end()), circle_.end());
}

}  // namespace tvm_interop::check
