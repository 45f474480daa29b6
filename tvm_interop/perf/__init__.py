"""Measures the latency and throughput of artifacts and other engines, each in its own process."""
