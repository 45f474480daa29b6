"""The kinds of operators that libraries know, with one file for each kind, named after the kind.

`tvm_interop.program.library_op.kinds` finds all files in this folder.
"""
