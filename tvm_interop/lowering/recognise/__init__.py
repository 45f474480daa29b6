"""The rules that recognise operators of each kind in Relax, and TVM's kernels of some kinds.

Each kind has one file, with the kind's name. The file registers its rules and kernels. All files in
this folder are imported automatically.
"""
