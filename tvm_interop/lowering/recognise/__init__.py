"""How operators of each kind are found in Relax, and what TVM computes in their stead.

One file a kind, which has the kind's name and registers what it has. A file that is here is found.
"""
