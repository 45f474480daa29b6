"""A lowered model as data: operators, tensors, the graph between them, and its safe order."""
