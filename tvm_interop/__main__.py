"""`python -m tvm_interop` is `tvm-interop`."""

from .cli import main

if __name__ == "__main__":
    main()
