"""Optuna at the side of the ledger: its TPE sampler draws settings, and a storage of its own can mirror what was found.

The ledger is what counts: a study is made from it each time, so a storage that is lost or damaged costs nothing.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxagent.errors import UsageError
from jaxagent.sweep.spec import Axis, Sweep

if TYPE_CHECKING:
    import optuna

_log = logging.getLogger(__name__)
_ID = "trial"  # user attribute of a mirrored trial
Told = tuple[str, Mapping[str, Any], float | None]  # a trial that ended: id, settings, mean objective (None if it failed)


def ask(sweep: Sweep, told: Sequence[Told], count: int) -> list[dict[str, Any]]:
    """Settings of the next `count` trials, given all trials that came before. The same answer to the same question.

    Raises:
      UsageError: Optuna is not installed.
    """
    optuna = imported()
    sampler = optuna.samplers.TPESampler(seed=sweep.plan.sampler_seed + len(told), constant_liar=True, multivariate=True)
    study = optuna.create_study(direction=_direction(sweep), sampler=sampler)
    study.add_trials([_frozen(sweep, one) for one in told])
    asked = [study.ask(_distributions(sweep)) for _ in range(count)]
    return [{axis.name: _value(axis, trial.params[axis.name]) for axis in sweep.sampled} for trial in asked]


def mirror(sweep: Sweep, told: Sequence[Told]) -> None:
    """Adds the trials that the plan's storage does not have yet. What goes wrong there is a warning.

    Only sampled axes have a part in it.
    """
    try:
        optuna = imported()
        study = optuna.create_study(
            storage=_storage(str(sweep.plan.optuna)),
            study_name=sweep.name,
            direction=_direction(sweep),
            load_if_exists=True,
        )
        known = {trial.user_attrs.get(_ID) for trial in study.get_trials(deepcopy=False)}
        study.add_trials([_frozen(sweep, one) for one in told if one[0] not in known])
    except UsageError:
        raise
    except Exception as error:  # whatever a storage raises: it is a copy
        _log.warning("the Optuna storage %s cannot be written and is behind: %s", sweep.plan.optuna, error)


def imported() -> Any:
    """Optuna.

    Raises:
      UsageError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError('Optuna is needed: pip install "jaxagent[optuna]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(where: str) -> Any:
    if "://" in where:
        return where
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(where))


def _direction(sweep: Sweep) -> str:
    return "maximize" if sweep.plan.mode == "max" else "minimize"


def _distributions(sweep: Sweep) -> dict[str, Any]:
    return {axis.name: _distribution(axis) for axis in sweep.sampled}


def _distribution(axis: Axis) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.kind == "choice":
        return CategoricalDistribution(range(len(axis.values)))
    low, high = axis.values
    return IntDistribution(low, high) if axis.kind == "int" else FloatDistribution(low, high, log=axis.kind == "log_uniform")


def _value(axis: Axis, param: Any) -> Any:
    return axis.values[param] if axis.kind == "choice" else param


def _param(axis: Axis, value: Any) -> Any:
    """The inverse of `_value`; categories are known by their place, since some are lists."""
    return axis.values.index(value) if axis.kind == "choice" else value


def _frozen(sweep: Sweep, told: Told) -> "optuna.trial.FrozenTrial":
    from optuna.trial import TrialState, create_trial

    trial, settings, value = told
    return create_trial(
        state=TrialState.FAIL if value is None else TrialState.COMPLETE,
        value=value,
        params={axis.name: _param(axis, settings[axis.name]) for axis in sweep.sampled},
        distributions=_distributions(sweep),
        user_attrs={_ID: trial},
    )
