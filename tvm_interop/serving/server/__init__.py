"""A server for compiled models: the policies of the simulator over real instances."""
