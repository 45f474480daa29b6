"""How much of the memory the bodies of requests have, over all connections together."""

from __future__ import annotations

import threading

from ...errors import OverloadedError


class HeldBytes:
    """A budget of bytes. Safe from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._lock = threading.Lock()

    def request(self, nbytes: int = 0) -> RequestBytes:
        """What one request takes of it, which is given back at the end of the `with`.

        Parameters
        ----------
        nbytes: how many it takes from the beginning.

        Raises
        ------
        OverloadedError
            All requests together would hold too many.
        """
        held = RequestBytes(self)
        held.add(nbytes)
        return held

    def change(self, nbytes: int) -> None:
        """Take bytes, or give them back where there are fewer than none.

        Raises
        ------
        OverloadedError
            There would be more than the budget has.
        """
        with self._lock:
            if nbytes > 0 and self._held + nbytes > self._most:
                raise OverloadedError(
                    f"the bodies of requests take {self._held} bytes together, and may take "
                    f"{self._most}; try again soon"
                )
            self._held += nbytes


class RequestBytes:
    """The bytes of one request."""

    def __init__(self, of_all: HeldBytes) -> None:
        self._of_all = of_all
        self._held = 0

    def __enter__(self) -> RequestBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def add(self, nbytes: int) -> None:
        """Hold so many more.

        Raises
        ------
        OverloadedError
            All requests together would hold too many.
        """
        self._of_all.change(nbytes)
        self._held += nbytes

    def release(self) -> None:
        """Hold none any more."""
        if self._held:
            self._of_all.change(-self._held)
            self._held = 0
