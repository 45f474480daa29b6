"""Runs plans on this machine's CPU, on GPUs or on RPC servers, through one class `GraphModule`."""
