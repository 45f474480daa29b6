"""What a policy is, and the policies by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ..errors import InputError, did_you_mean
from ..plain_data import is_whole
from .programs import Programs
from .tasks import Admit, Start, View, Wait

_P = TypeVar("_P", bound="type[Policy]")
_REGISTRY: dict[str, type[Policy]] = {}


@dataclass(frozen=True)
class Setting:
    """What a policy knows before the first request.

    Attributes
    ----------
    programs: the models, the device, and what instances take on it. In a simulation of a device
        that is not as believed, the device here is the one that is believed.
    """

    programs: Programs


class Policy(ABC):
    """Decides which instances start when: the same object in the simulator and in a server.

    A policy has a state of its own, so each run needs a new one.
    """

    name: ClassVar[str] = ""

    def prepare(self, setting: Setting) -> None:
        """Be told of the models and the device, before anything is asked."""
        self.setting = setting

    @abstractmethod
    def decide(self, view: View) -> Start | Admit | Wait:
        """What to do now.

        Asked at each arrival, at each end of an instance and at the time it asked for; after a
        `Start` or an `Admit`, which is carried out at once, it is asked again until it waits.
        """

    def close(self) -> None:  # noqa: B027
        """It is asked nothing any more: end what it does by itself. Most do nothing."""

    def explanation(self) -> list[tuple[float, str]]:
        """What it decided and why, by time in microseconds; nothing, unless it has something."""
        return []


def register_policy(name: str) -> Callable[[_P], _P]:
    """Decorate a subclass of `Policy` so that `make_policy` finds it by name.

    The parameters of its constructor are its options.

    Raises
    ------
    InputError: when the name is taken or empty, or the class is no policy.
    """
    if not name or not isinstance(name, str):
        raise InputError(f"a policy cannot be called {name!r}; give it a name")

    def register(policy: _P) -> _P:
        if not (isinstance(policy, type) and issubclass(policy, Policy)):
            raise InputError(f"{policy!r} is no policy; give a subclass of `Policy`")
        if name in _REGISTRY:
            raise InputError(f"there is a policy `{name}` already; choose another name")
        policy.name = name
        _REGISTRY[name] = policy
        return policy

    return register


def policies() -> list[str]:
    """The names that `make_policy` takes, in alphabetical order."""
    return sorted(_REGISTRY)


def make_policy(name: str, **options: Any) -> Policy:
    """A new policy of that name.

    Raises
    ------
    InputError: for a name or an option that does not exist (listing those that do), and an option
        of no use.
    """
    if name not in _REGISTRY:
        raise InputError(
            f"there is no policy `{name}`{did_you_mean(str(name), policies())}; the policies are "
            f"{', '.join(policies())}"
        )
    known = list(inspect.signature(_REGISTRY[name].__init__).parameters)[1:]
    for option in options:
        if option not in known:
            raise InputError(
                f"policy `{name}` has no option `{option}`{did_you_mean(option, known)}; "
                + (f"its options are {', '.join(known)}" if known else "it takes none")
            )
    return _REGISTRY[name](**options)


def require_counts(**options: int) -> None:
    """Check that options of a policy are whole numbers, 1 or more.

    Raises
    ------
    InputError: one is not; it is named.
    """
    for name, value in options.items():
        if not is_whole(value) or value < 1:
            raise InputError(f"`{name}` is {value!r}; it must be a whole number, 1 or more")
