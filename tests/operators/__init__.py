"""Compares every operator of ONNX with two oracles: `python -m tests.operators FAMILY`.

`families` has a file of cases for each kind of operator. `case` defines a case. `judge` compiles
many cases in one model, and compares each with onnxruntime and with ONNX's reference. `decided`
lists the cases in which these two differ, and the refused cases. `__main__` runs a family in
processes that may crash.
"""
