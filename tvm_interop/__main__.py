"""Makes `python -m tvm_interop` run the command `tvm-interop`."""

from .cli import main

if __name__ == "__main__":
    main()
