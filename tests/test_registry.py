"""Environments by name: what is found, what is refused, and with which words."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from jaxagent.envs import registry
from jaxagent.envs.tools.base import ToolEnv


@pytest.mark.fast
@pytest.mark.parametrize("name", registry.names())
def test_every_entry_is_what_it_says(name: str) -> None:
    env, params = registry.make(name)
    assert env.spec.name == name
    assert hash(env) == hash(registry.make(name)[0]) and env == registry.make(name)[0]  # static under jit
    assert type(params) is registry.ENVS[name].params
    assert list(registry.param_schema(name)) == [field.name for field in dataclasses.fields(params)]
    assert ("turn" if isinstance(env, ToolEnv) else "obs") in registry.option_defaults(name)


@pytest.mark.fast
def test_params_are_set_and_cast() -> None:
    _, params = registry.make("Collector-v0", params={"goal_reward": 3, "max_steps": 9})
    assert params.goal_reward.dtype == np.float32 and params.goal_reward == 3.0
    assert params.max_steps.dtype == np.int32 and params.max_steps == 9
    assert params.step_cost == np.float32(0.16)  # untouched


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Colector-v0", {}, "name: expected the name of an environment, got 'Colector-v0'; did you mean Collector-v0"),
        ("MiniGrid-DoorKey-8x8", {}, "did you mean MiniGrid-DoorKey-8x8-v0"),
        ("BabyAI-GoToLocal", {}, "did you mean BabyAI-GoToLocal-v0"),
        ("CartPol-v1", {}, "did you mean CartPole-v1"),
        ("zzzz", {}, "`jaxagent envs` lists them"),
        ("Collector-v0", {"obz": "rgb"}, "obz: unknown option; did you mean 'obs'?"),
        ("Collector-v0", {"obs": "rbg"}, "obs: expected one of"),
        ("MiniGrid-Fetch-5x5-N2-v0", {"mission": "text"}, "mission: expected one of leaves, tokens, got 'text'"),
        ("MiniGrid-Fetch-5x5-N2-v0", {"done_action": True}, "done_action: unknown option"),
        ("BabyAI-Unlock-v0", {"fixed": "yes"}, "fixed: expected true or false, got 'yes'"),
        ("BabyAI-Unlock-v0", {"fixed": 1}, "fixed: expected true or false, got 1"),
        ("MiniGrid-Fetch-5x5-N2-v0", {"fixed": "no"}, "fixed: expected true or false, got 'no'"),
        ("BabyAI-Unlock-v0", {"done_action": "yes"}, "done_action: expected true or false, got 'yes'"),
        ("BabyAI-Unlock-v0", {"max_steps": 9.5}, "max_steps: expected an integer or none, got 9.5"),
        ("BabyAI-Unlock-v0", {"max_steps": True}, "max_steps: expected an integer or none, got True"),
        ("BabyAI-Unlock-v0", {"obs": ["rgb"]}, "obs: expected text, got ['rgb']"),
        ("BabyAI-Unlock-v0", {"mission": None}, "mission: expected text, got None"),
        ("BabyAI-Mix", {"levels": {"BabyAI-Unlock-v0": 1}}, "levels: expected a list, each text, got a table"),
        ("BabyAI-Mix", {"levels": ["BabyAI-Unlock-v0", 3]}, "levels: expected a list, each text, got ['BabyAI-Unlock-v0', 3]"),
        ("BabyAI-Mix", {"weights": "even"}, "weights: expected a list, each a finite number or none, got 'even'"),
        ("CollectorRandom-v0", {"size": "8"}, "size: expected an integer, got '8'"),
        ("CartPole-v1", {"max_steps_in_episode": "9"}, "max_steps_in_episode: expected an integer or none, got '9'"),
        ("Catch-bsuite", {"rows": "9"}, "rows: expected an integer, got '9'"),
        ("Collector-v0", {"params": 3}, "params: expected a dict of fields to set, got int"),
        ("Collector-v0", {"params": {"max_step": 1}}, "params.max_step: unknown field; did you mean 'max_steps'?"),
        ("Collector-v0", {"params": {"max_steps": 1.5}}, "params.max_steps: expected an integer, got 1.5"),
        (
            "Collector-v0",
            {"params": {"max_steps": 21}},
            "params.max_steps: expected at most 20, the bound",
        ),
        ("Collector-v0", {"params": {"max_steps": 2**31}}, "params.max_steps: expected a number that fits int32"),
        ("Collector-v0", {"params": {"goal_reward": float("nan")}}, "params.goal_reward: expected a finite number, got nan"),
        ("Collector-v0", {"params": {"goal_reward": [1.0]}}, "params.goal_reward: expected a finite number, got"),
        ("Collector-v0", {"params": {"goal_reward": [[1.0], []]}}, "params.goal_reward: expected a finite number, got"),
        ("Collector-v0", {"params": {"goal_reward": "1"}}, "params.goal_reward: expected a finite number, got '1'"),
    ],
)
def test_what_is_refused(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        registry.make(name, **arguments)
    assert message in str(caught.value)


@pytest.mark.fast
def test_options_may_be_numbers_and_arrays_of_numpy() -> None:
    levels = ("BabyAI-Unlock-v0", "BabyAI-GoTo-v0")
    _, params = registry.make("BabyAI-Mix", levels=levels, weights=np.array([1, 3]), max_steps=np.int64(9), fixed=np.True_)
    np.testing.assert_array_equal(params.weights, [1, 3])
    assert params.max_steps == 9
    assert registry.make("BabyAI-Mix", levels=list(levels))[0] == registry.make("BabyAI-Mix", levels=levels)[0]


def test_gymnax_environments() -> None:
    import gymnax

    assert set(registry.GYMNAX_IDS) == set(gymnax.registered_envs)
    env, params = registry.make("CartPole-v1", params={"gravity": 5})
    assert params.gravity == np.float32(5.0)
    assert registry.make("gymnax/CartPole-v1")[0] == env
    corners = registry.make("FourRooms-misc", goal_fixed=(8, 9))[0], registry.make("FourRooms-misc", goal_fixed=[8, 9])[0]
    assert corners[0] == corners[1]
    with pytest.raises(ValueError, match="CartPole-v1"):
        registry.make("gymnax/CartPol-v1")


@pytest.mark.fast
def test_making_starts_no_backend_and_needs_no_gymnax() -> None:
    code = """
import sys
from jax._src import xla_bridge
from jaxagent.envs import registry
from jaxagent.envs.tools.base import ToolEnv
for name in registry.names():
    registry.make(name, params={"max_steps": 5})
    assert not xla_bridge.backends_are_initialized(), name
assert "gymnax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
