"""Every operator of ONNX against two oracles: `python -m tests.operators FAMILY`.

`families` has a file of cases for each kind of operator, `case` says what a case is, `judge`
compiles many in one model and compares each with onnxruntime and with ONNX's reference, `decided`
lists where these differ and what is refused, `__main__` runs a family in processes that may crash.
"""
