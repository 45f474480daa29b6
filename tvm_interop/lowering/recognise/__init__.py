"""The rules that recognise each kind of operator in Relax, and TVM's kernels of some kinds.

Each kind of operator has one file, with the kind's name. The file registers the rules and kernels
of the kind. All files in this folder are imported automatically.
"""
