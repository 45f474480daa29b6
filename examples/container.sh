#!/bin/sh
# Fills a folder with all that a program needs to run a model without Python: the program, the model,
# the runtime library, oneDNN, and the system's libraries. The folder can be the whole file system of
# a container. `tvm-interop` must be on the PATH.
#
#     sh container.sh PROGRAM MODEL.tar FOLDER
set -eu
if [ $# -ne 3 ]; then
  echo "usage: sh container.sh PROGRAM MODEL.tar FOLDER" >&2
  exit 2
fi
app=$3/app
mkdir -p "$app" "$3/proc" # Containers mount /proc, through which the program finds the library.
cp "$1" "$app/program"
cp "$2" "$app/model.tar"
# The library finds oneDNN beside itself.
cp -L "$(tvm-interop config --library)" "$app/libtvm_interop_runtime.so.1"
cp -L "$(tvm-interop config --onednn)" "$app/libdnnl.so.3"
strip "$app/program" "$app/libtvm_interop_runtime.so.1"
needed=$(ldd "$app/program" "$app/libtvm_interop_runtime.so.1" "$app/libdnnl.so.3")
if missing=$(echo "$needed" | grep "not found"); then
  echo "container.sh: this machine lacks $missing" >&2
  exit 1
fi
# The lines read `libm.so.6 => /lib/libm.so.6 (0x...)` and `/lib64/ld-linux-x86-64.so.2 (0x...)`. The
# files keep their places, where the system's loader looks for them.
echo "$needed" | grep -o '/[^ ]*\.so[^ ]* (' | tr -d '( ' | grep -v "^$app\|libtvm_interop" | sort -u |
  xargs cp -L --parents -t "$3"
