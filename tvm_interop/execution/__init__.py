"""Runs plans, on this CPU, on GPUs or on servers, behind one `GraphModule`."""
