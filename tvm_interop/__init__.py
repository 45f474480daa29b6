"""Run a model's independent operators side by side."""
