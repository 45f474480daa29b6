"""Imports a model, such as an ONNX file, as a Relax module with static shapes."""

from .load import load_model

__all__ = ["load_model"]
