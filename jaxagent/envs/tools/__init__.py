"""Simulated worlds in which actions are tool calls."""

from collections.abc import Callable
from typing import Any

from jaxagent.envs.tools.arg_fill import arg_fill
from jaxagent.envs.tools.base import ToolEnv
from jaxagent.envs.tools.code_fix import code_fix
from jaxagent.envs.tools.flight_booking import flight_booking
from jaxagent.envs.tools.retrieval import retrieval
from jaxagent.envs.tools.sql_query import sql_query
from jaxagent.envs.tools.tidy_desk import tidy_desk
from jaxagent.envs.tools.tool_select import tool_select

ENVS: dict[str, Callable[..., ToolEnv]] = {
    "ArgFill-v0": arg_fill,
    "CodeFix-v0": code_fix,
    "FlightBooking-v0": flight_booking,
    "Retrieval-v0": retrieval,
    "SqlQuery-v0": sql_query,
    "TidyDesk-v0": tidy_desk,
    "ToolSelect-v0": tool_select,
}


def make(name: str, **options: Any) -> tuple[ToolEnv, Any]:
    """Builds an environment and its default params.

    Raises:
      ValueError: an option with a value that does not fit.
    """
    env = ENVS[name](**options)
    env.validate()
    return env, env.world.default_params
