#include "passes/matching.h"

namespace tvm_interop {
namespace {

class HopcroftKarp {
 public:
  HopcroftKarp(const std::vector<BitSet>& adjacency, int num_right)
      : adjacency_(adjacency), num_right_(num_right) {
    right_of_.assign(adjacency.size(), -1);
    left_of_.assign(num_right, -1);
  }

  std::vector<int> Solve() {
    while (BuildLayers()) {
      for (size_t u = 0; u < adjacency_.size(); ++u) {
        if (right_of_[u] < 0) Augment(static_cast<int>(u));
      }
    }
    return right_of_;
  }

 private:
  // Breadth first from the free left vertices: layers_[d] holds the right vertices that an
  // alternating path of 2d+1 edges reaches first. Ends at the first layer with a free one; false
  // when there is none.
  bool BuildLayers() {
    layers_.clear();
    BitSet unseen = EmptyBitSet(num_right_);
    for (int v = 0; v < num_right_; ++v) unseen.Set(v);
    std::vector<int> frontier;
    for (size_t u = 0; u < adjacency_.size(); ++u) {
      if (right_of_[u] < 0) frontier.push_back(static_cast<int>(u));
    }
    bool reached_free = false;
    while (!frontier.empty() && !reached_free) {
      BitSet layer = EmptyBitSet(num_right_);
      for (int u : frontier) {
        const BitSet found = adjacency_[u] & unseen;
        layer |= found;
        unseen -= found;
      }
      frontier.clear();
      layer.ForEach([&](int v) {
        if (left_of_[v] < 0) {
          reached_free = true;
        } else {
          frontier.push_back(left_of_[v]);
        }
      });
      layers_.push_back(std::move(layer));
    }
    return reached_free;
  }

  // Depth first along the layers from the free vertex `root`, with a stack of its own: paths get as
  // long as the graph. A right vertex that was tried leaves its layer, whether it led on or not.
  void Augment(int root) {
    std::vector<int> path_left = {root};
    std::vector<int> path_right;
    while (!path_left.empty()) {
      const size_t depth = path_left.size() - 1;
      int v = -1;
      if (depth < layers_.size()) {
        v = (adjacency_[path_left.back()] & layers_[depth]).First();
      }
      if (v < 0) {
        path_left.pop_back();
        if (!path_right.empty()) path_right.pop_back();
        continue;
      }
      layers_[depth].Reset(v);
      path_right.push_back(v);
      if (left_of_[v] < 0) {
        for (size_t i = 0; i < path_left.size(); ++i) {
          right_of_[path_left[i]] = path_right[i];
          left_of_[path_right[i]] = path_left[i];
        }
        return;
      }
      path_left.push_back(left_of_[v]);
    }
  }

  const std::vector<BitSet>& adjacency_;
  const int num_right_;
  std::vector<int> right_of_, left_of_;
  std::vector<BitSet> layers_;
};

}  // namespace

std::vector<int> MaximumMatching(const std::vector<BitSet>& adjacency, int num_right) {
  return HopcroftKarp(adjacency, num_right).Solve();
}

}  // namespace tvm_interop
