"""IOS: the figures that cannot be reproduced here, each with the missing equipment."""

from __future__ import annotations

from .record import Record, not_to_be_had
from .registry import experiment


@experiment("ios", "Figure 12", "TVM's tuned kernels against IOS", seconds=0)
def figure_12() -> Record:
    """Says what is missing: TVM tunes kernels by running them on a GPU."""
    return not_to_be_had(
        "TVM's tuning takes 208 hours of a GPU and IOS takes 3. IOS is faster than TVM on "
        "Inception-V3 and SqueezeNet, and slower on RandWire and NASNet-A.",
        "A GPU for hundreds of hours, because tuning runs each candidate of a kernel on the "
        "device. The simulator knows nothing of the quality of a kernel.",
    )


@experiment("ios", "Figure 7", "other frameworks", seconds=0)
def figure_7() -> Record:
    """Says what is missing: the frameworks of the figure run on GPUs only."""
    return not_to_be_had(
        "IOS is 1.1 to 1.5 times faster than TASO, TVM with cuDNN and TensorRT.",
        "A V100 with TensorFlow, TASO, TVM with cuDNN, and TensorRT 7.",
    )
