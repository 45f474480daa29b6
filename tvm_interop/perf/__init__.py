"""Measures the latency and throughput of artifacts and of other engines, such as onnxruntime.

Each engine runs in its own process.
"""
