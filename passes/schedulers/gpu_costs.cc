#include "passes/schedulers/gpu_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "passes/graph/error.h"

namespace tvm_interop {
namespace {

bool IsCost(double us) { return std::isfinite(us) && us >= 0; }

void CheckCosts(const OpGraph& graph, const std::vector<double>& op_us,
                const std::vector<double>& edge_us) {
  if (op_us.size() != static_cast<size_t>(graph.num_ops()) ||
      edge_us.size() != graph.edges().size()) {
    throw ScheduleError("there are " + std::to_string(op_us.size()) + " latencies and " +
                        std::to_string(edge_us.size()) + " transfers for " +
                        std::to_string(graph.num_ops()) + " operators and " +
                        std::to_string(graph.edges().size()) + " edges; give one for each");
  }
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (!IsCost(op_us[op])) {
      throw ScheduleError("operator `" + graph.name(op) + "` takes " + std::to_string(op_us[op]) +
                          " us; a latency must be finite and not negative");
    }
  }
  for (size_t e = 0; e < edge_us.size(); ++e) {
    if (IsCost(edge_us[e])) continue;
    const auto& [from, to] = graph.edges()[e];
    throw ScheduleError("the copy from `" + graph.name(from) + "` to `" + graph.name(to) +
                        "` takes " + std::to_string(edge_us[e]) +
                        " us; a transfer must be finite and not negative");
  }
}

}  // namespace

GpuCosts::GpuCosts(const OpGraph& graph, const std::vector<double>& op_us,
                   const std::vector<double>& edge_us)
    : graph_(graph) {
  CheckCosts(graph, op_us, edge_us);
  const int n = graph.num_ops();
  // For each operator, the transfer times of the edges to its successors, in the order of the
  // successors.
  std::vector<std::vector<double>> reader_us(n);
  for (int op = 0; op < n; ++op) reader_us[op].resize(graph.successors(op).size());
  for (size_t e = 0; e < edge_us.size(); ++e) {
    const auto& [from, to] = graph.edges()[e];
    const std::vector<int>& readers = graph.successors(from);
    const auto place = std::lower_bound(readers.begin(), readers.end(), to) - readers.begin();
    reader_us[from][place] = std::max(reader_us[from][place], edge_us[e]);
  }

  const std::vector<int>& topological = graph.topological_order();
  std::vector<double> priority(n);
  for (auto op = topological.rbegin(); op != topological.rend(); ++op) {
    double behind = 0;
    const std::vector<int>& readers = graph.successors(*op);
    for (size_t i = 0; i < readers.size(); ++i) {
      behind = std::max(behind, reader_us[*op][i] + priority[readers[i]]);
    }
    priority[*op] = op_us[*op] + behind;
  }
  op_of_ = topological;
  std::stable_sort(op_of_.begin(), op_of_.end(),
                   [&](int a, int b) { return priority[a] > priority[b]; });
  rank_of_.resize(n);
  us_.resize(n);
  for (int rank = 0; rank < n; ++rank) {
    rank_of_[op_of_[rank]] = rank;
    us_[rank] = op_us[op_of_[rank]];
  }

  std::vector<std::vector<Arc>> sources(n);
  readers_.begins.push_back(0);
  for (int rank = 0; rank < n; ++rank) {
    const std::vector<int>& readers = graph.successors(op_of_[rank]);
    for (size_t i = 0; i < readers.size(); ++i) {
      const double us = reader_us[op_of_[rank]][i];
      readers_.arcs.push_back({rank_of_[readers[i]], us});
      sources[rank_of_[readers[i]]].push_back({rank, us});
    }
    readers_.begins.push_back(static_cast<int>(readers_.arcs.size()));
  }
  sources_.begins.push_back(0);
  for (const auto& arcs : sources) {
    sources_.arcs.insert(sources_.arcs.end(), arcs.begin(), arcs.end());
    sources_.begins.push_back(static_cast<int>(sources_.arcs.size()));
  }
}

}  // namespace tvm_interop
