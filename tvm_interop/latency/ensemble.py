"""An ensemble of models (boosted trees) that predicts a number and how uncertain the number is.

Each member of the ensemble learns from its own random draw of the samples. If only few samples are
similar to the one to predict, the members' predictions differ. So the size of these differences
says how uncertain the prediction is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError

Floats = npt.NDArray[np.float64]

_MEMBERS = 6
_TREES = 40
_MORE_TREES = 10
"""Number of trees that each member of the ensemble gains when samples are added."""
_MOST_TREES = 70
_DEPTH = 5
_LEARNING_RATE = 0.2
_GROWTH = 1.5
"""All trees are trained anew when the number of samples has grown by more than this factor since
the last time."""


class TreeEnsemble:
    """Predicts a number and its uncertainty. The same seed and samples give the same predictions.

    Samples may be added in several calls of `add`. When a sample is added, a Poisson draw for each
    member decides how often the member sees the sample (Oza and Russell, "Online Bagging and
    Boosting", AISTATS 2001).

    Attributes
    ----------
    num_samples: how many samples were added so far.
    """

    def __init__(self, seed: int = 0) -> None:
        self._xgboost = _import_xgboost()
        self._draws = [np.random.default_rng([seed, member]) for member in range(_MEMBERS)]
        self._seed = seed
        self._features: npt.NDArray[np.float32] | None = None
        self._targets: Floats = np.empty(0)
        self._weights = np.empty((_MEMBERS, 0))
        self._boosters: list[Any] = []
        self._fitted_samples = 0
        self._trees = 0
        self._noise = 0.0

    @property
    def num_samples(self) -> int:
        return len(self._targets)

    def add(self, features: npt.NDArray[np.float32], targets: Floats) -> None:
        """Add samples and learn from all samples so far.

        `features` has shape (n, num_features), and `targets`, the numbers to predict, has shape
        (n,).
        """
        self._features = (
            features if self._features is None else np.concatenate([self._features, features])
        )
        self._targets = np.concatenate([self._targets, targets])
        drawn = [draw.poisson(1.0, len(targets)) for draw in self._draws]
        self._weights = np.concatenate([self._weights, np.array(drawn)], axis=1)
        anew = (
            self.num_samples > _GROWTH * self._fitted_samples
            or self._trees + _MORE_TREES > _MOST_TREES
        )
        if anew:
            self._boosters = [None] * _MEMBERS
            self._fitted_samples = self.num_samples
            self._trees = 0
        trees = _TREES if anew else _MORE_TREES
        self._trees += trees
        self._boosters = [self._train(member, trees) for member in range(_MEMBERS)]
        self._noise = self._unseen_error()

    def predict(self, features: npt.NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Return the mean of the members' predictions and the standard deviation: two arrays (n,).

        The variance is the sum of two parts: the variance between the members, and their mean
        squared error on samples they have not seen.
        """
        members = self._predict_members(features)
        return members.mean(axis=0), np.sqrt(members.var(axis=0) + self._noise)

    def _train(self, member: int, trees: int) -> Any:
        # If several threads trained the trees, the order of additions, and so the rounding, would
        # vary between runs.
        parameters = {
            "objective": "reg:squarederror",
            "base_score": 0.0,
            "tree_method": "hist",
            "max_depth": _DEPTH,
            "eta": _LEARNING_RATE,
            "seed": self._seed,
            "nthread": 1,
            "verbosity": 0,
        }
        samples = self._xgboost.DMatrix(
            self._features, self._targets, weight=self._weights[member], nthread=1
        )
        return self._xgboost.train(parameters, samples, trees, xgb_model=self._boosters[member])

    def _predict_members(self, features: npt.NDArray[np.float32]) -> Floats:
        # Use one thread. A search asks for a few stages at a time, so more threads would mostly
        # wait for each other.
        asked = self._xgboost.DMatrix(features, nthread=1)
        return np.array([booster.predict(asked) for booster in self._boosters], dtype=np.float64)

    def _unseen_error(self) -> float:
        """Mean squared error of each member on the samples that it did not learn from; 0 if there
        are none.
        """
        assert self._features is not None
        unseen = self._weights == 0
        if not unseen.any():
            return 0.0
        off = self._predict_members(self._features) - self._targets
        return float(np.mean(off[unseen] ** 2))


def _import_xgboost() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise DeviceError(
            "latencies are learned with xgboost, which is not installed; install "
            "`tvm-interop[learned]`, or let latencies be measured"
        ) from error
    return xgboost
