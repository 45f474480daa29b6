"""The kinds of operators that libraries know, one a file, which has the kind's name.

A file that is here is found: see `tvm_interop.program.library_op.kinds`.
"""
