"""The cases of the operator tests, by kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..case import Case
from .elementwise import elementwise
from .movement import movement
from .pools import pools
from .products import products
from .quantised import quantised
from .recurrent import recurrent
from .reductions import reductions
from .resizing import resizing
from .spectra import spectra

FAMILIES: dict[str, Callable[[], Iterable[Case]]] = {
    "elementwise": elementwise,
    "movement": movement,
    "pools": pools,
    "products": products,
    "quantised": quantised,
    "recurrent": recurrent,
    "reductions": reductions,
    "resizing": resizing,
    "spectra": spectra,
}
