"""A lowered model as data: its operators, its tensors, and the graph between the operators."""
