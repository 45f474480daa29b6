"""Set before anything imports TVM: without it TVM pins every thread that calls a kernel."""

import os

os.environ.setdefault("TVM_BIND_THREADS", "0")
