"""Latencies measured on a device, and the database that keeps them."""
