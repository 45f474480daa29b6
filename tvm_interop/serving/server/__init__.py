"""An inference server for compiled models, which uses the same policies as the simulator."""
