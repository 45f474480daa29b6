"""From a model file to a Relax module with static shapes."""

from .load import load_model

__all__ = ["load_model"]
