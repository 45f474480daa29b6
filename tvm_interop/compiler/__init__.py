"""Takes a model from its file to an artifact: kernels, latencies, schedule, plan."""
