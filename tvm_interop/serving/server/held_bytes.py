"""A limit on the memory that the bodies of requests take, over all connections together."""

from __future__ import annotations

import threading

from ...errors import OverloadedError


class HeldBytes:
    """A budget of bytes that all requests share. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._lock = threading.Lock()

    def request(self, nbytes: int = 0) -> RequestBytes:
        """Return a context manager for the bytes of one request, which releases them at its end.

        Parameters
        ----------
        nbytes: number of bytes that the request takes from the beginning.

        Raises
        ------
        OverloadedError
            All requests together would exceed the budget.
        """
        held = RequestBytes(self)
        held.add(nbytes)
        return held

    def change(self, nbytes: int) -> None:
        """Take bytes from the budget, or give bytes back if `nbytes` is negative.

        Raises
        ------
        OverloadedError
            The budget would be exceeded.
        """
        with self._lock:
            if nbytes > 0 and self._held + nbytes > self._most:
                raise OverloadedError(
                    f"the bodies of requests take {self._held} bytes together, and may take at "
                    f"most {self._most}; try again soon"
                )
            self._held += nbytes


class RequestBytes:
    """The bytes of one request that count towards a `HeldBytes`."""

    def __init__(self, of_all: HeldBytes) -> None:
        self._of_all = of_all
        self._held = 0

    def __enter__(self) -> RequestBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def add(self, nbytes: int) -> None:
        """Take `nbytes` more bytes from the budget.

        Raises
        ------
        OverloadedError
            All requests together would exceed the budget.
        """
        self._of_all.change(nbytes)
        self._held += nbytes

    def release(self) -> None:
        """Give all bytes of the request back."""
        if self._held:
            self._of_all.change(-self._held)
            self._held = 0
