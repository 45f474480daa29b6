"""TVM's own kernels: scheduled, built, and what they ask of a device."""
