"""The base class of serving policies, and the registry that finds a policy by its name."""

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
    """The information that a policy gets before the first request.

    Attributes
    ----------
    programs: the models, the device, and the latencies of instances on this device. A test may give
        the policy wrong data about the device (see the parameter `believed` of `simulate_serving`).
        Then `programs` describes the device that the policy believes in.
    """

    programs: Programs


class Policy(ABC):
    """The base class of policies. A policy decides which instances start, and when.

    The simulator and the server use the same policy classes. A policy has state, so each run needs
    a new policy object.
    """

    name: ClassVar[str] = ""

    def prepare(self, setting: Setting) -> None:
        """Receive the models and the device. Called once, before the first call of `decide`."""
        self.setting = setting

    @abstractmethod
    def decide(self, view: View) -> Start | Admit | Wait:
        """Decide what to do now.

        The simulator or server calls this method at each arrival, at each end of an instance, and
        at the time that the last `Wait` named. A `Start` or an `Admit` is carried out at once. The
        method is then called again, until it returns a `Wait`.
        """

    def close(self) -> None:  # noqa: B027
        """End the background threads of the policy. `decide` is not called afterwards.

        The base class has no background threads, so its method does nothing.
        """

    def explanation(self) -> list[tuple[float, str]]:
        """Return the choices of the policy so far, as (time in microseconds, text) pairs.

        Most policies record no choices, and return an empty list.
        """
        return []


def register_policy(name: str) -> Callable[[_P], _P]:
    """Decorate a subclass of `Policy` so that `make_policy` finds it by name.

    The parameters of the constructor become the options of the policy.

    Raises
    ------
    InputError: when the name is taken or empty, or the class is not a policy.
    """
    if not name or not isinstance(name, str):
        raise InputError(f"a policy cannot be called {name!r}; give it a name")

    def register(policy: _P) -> _P:
        if not (isinstance(policy, type) and issubclass(policy, Policy)):
            raise InputError(f"{policy!r} is not a policy; give a subclass of `Policy`")
        if name in _REGISTRY:
            raise InputError(f"there is a policy `{name}` already; choose another name")
        policy.name = name
        _REGISTRY[name] = policy
        return policy

    return register


def policies() -> list[str]:
    """Return the names that `make_policy` accepts, in alphabetical order."""
    return sorted(_REGISTRY)


def make_policy(name: str, **options: Any) -> Policy:
    """Create a policy by its name.

    Raises
    ------
    InputError: the policy or an option does not exist (the message lists what exists), or the value
        of an option is invalid.
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
    InputError: an option has another value; the message names the option.
    """
    for name, value in options.items():
        if not is_whole(value) or value < 1:
            raise InputError(f"`{name}` is {value!r}; it must be a whole number, 1 or more")
