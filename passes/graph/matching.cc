#include "passes/graph/matching.h"

#include <cstddef>
#include <limits>
#include <utility>

namespace tvm_interop {
namespace {

class HopcroftKarp {
 public:
  HopcroftKarp(const std::vector<BitSet>& adjacency, int num_right, std::vector<int> matching)
      : adjacency_(adjacency), num_right_(num_right), right_of_(std::move(matching)) {
    left_of_.assign(num_right, -1);
    for (size_t u = 0; u < right_of_.size(); ++u) {
      if (right_of_[u] >= 0) left_of_[right_of_[u]] = static_cast<int>(u);
    }
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
  // A breadth-first search from the free left vertices. layers_[d] holds the right vertices to
  // which the shortest alternating path has 2d+1 edges. The search ends at the first layer that
  // holds a free right vertex. Returns false if no free right vertex can be reached.
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

  // A depth-first search along the layers, from the free left vertex `root`. It has its own stack
  // and is not recursive, because a path can be as long as the graph. A right vertex leaves its
  // layer as soon as it is tried. It does so even if it leads to no free vertex.
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

// The textbook form of the algorithm of Hopcroft and Karp, on adjacency lists.
class SparseHopcroftKarp {
 public:
  SparseHopcroftKarp(const std::vector<std::vector<int>>& adjacency, int num_right)
      : adjacency_(adjacency),
        right_of_(adjacency.size(), -1),
        left_of_(num_right, -1),
        layer_(adjacency.size()),
        tried_(adjacency.size()) {}

  std::vector<int> Solve() {
    while (BuildLayers()) {
      tried_.assign(adjacency_.size(), 0);
      for (size_t u = 0; u < adjacency_.size(); ++u) {
        if (right_of_[u] < 0) Augment(static_cast<int>(u));
      }
    }
    return right_of_;
  }

 private:
  static constexpr int kUnreached = std::numeric_limits<int>::max();

  // Sets the layer of each left vertex: the number of matched edges on the shortest alternating
  // path from a free left vertex. Returns false if no free right vertex can be reached.
  bool BuildLayers() {
    layer_.assign(adjacency_.size(), kUnreached);
    std::vector<int> queue;
    for (size_t u = 0; u < adjacency_.size(); ++u) {
      if (right_of_[u] >= 0) continue;
      layer_[u] = 0;
      queue.push_back(static_cast<int>(u));
    }
    bool reached_free = false;
    for (size_t head = 0; head < queue.size(); ++head) {
      const int u = queue[head];
      for (int v : adjacency_[u]) {
        const int next = left_of_[v];
        if (next < 0) {
          reached_free = true;
        } else if (layer_[next] == kUnreached) {
          layer_[next] = layer_[u] + 1;
          queue.push_back(next);
        }
      }
    }
    return reached_free;
  }

  void Augment(int root) {
    std::vector<int> path = {root};
    while (!path.empty()) {
      const int u = path.back();
      if (tried_[u] == adjacency_[u].size()) {
        path.pop_back();
        continue;
      }
      const int v = adjacency_[u][tried_[u]++];
      const int next = left_of_[v];
      if (next >= 0) {
        if (layer_[next] == layer_[u] + 1) path.push_back(next);
        continue;
      }
      // The path ends at a free right vertex. So each left vertex on the path is now matched to the
      // neighbour that it tried last.
      for (int left : path) {
        right_of_[left] = adjacency_[left][tried_[left] - 1];
        left_of_[right_of_[left]] = left;
      }
      return;
    }
  }

  const std::vector<std::vector<int>>& adjacency_;
  std::vector<int> right_of_, left_of_;
  std::vector<int> layer_;     // the layer of each left vertex
  std::vector<size_t> tried_;  // by left vertex: how many of its neighbours this phase has tried
};

}  // namespace

std::vector<int> MaximumMatching(const std::vector<BitSet>& adjacency, int num_right) {
  return GrowMatching(adjacency, num_right, std::vector<int>(adjacency.size(), -1));
}

std::vector<int> GrowMatching(const std::vector<BitSet>& adjacency, int num_right,
                              std::vector<int> matching) {
  return HopcroftKarp(adjacency, num_right, std::move(matching)).Solve();
}

std::vector<int> MaximumMatching(const std::vector<std::vector<int>>& adjacency, int num_right) {
  return SparseHopcroftKarp(adjacency, num_right).Solve();
}

}  // namespace tvm_interop
