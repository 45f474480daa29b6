#ifndef PASSES_SCHEDULERS_LIOS_RANDOM_H_
#define PASSES_SCHEDULERS_LIOS_RANDOM_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// Variants of LIOS from its paper, which studies the two heuristics of LIOS separately (section V,
// RQ3). Draws are uniform, and the same seed gives the same draws on every machine.

// LIOS-Rand1 takes a random ready operator and puts it on the stream where it finishes first.
Schedule ScheduleLiosRand1(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                           uint64_t seed);
// LIOS-Rand2 takes the longest ready operator and puts it on a random stream.
Schedule ScheduleLiosRand2(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                           uint64_t seed);
// LIOS-Rand takes a random ready operator and puts it on a random stream.
Schedule ScheduleLiosRand(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                          uint64_t seed);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIOS_RANDOM_H_
