"""Write a query word by word, run it on tables, hand it in: `SqlQuery-v0`.

A database has 3 tables of 4 columns and 16 rows, with values below 8. A query takes a count, a sum, a least or a greatest value
of a column of a table, of all rows or of those where a column is below, at or above a value. The task says one in other words.
Handed in, a query is paid for the result on the database at hand; whether it is the right one shows on four others.

No value is stored as such. Values have three bits, and a column is three words of 16 bits, a bit a row: comparing 16 rows with
a value takes a few bitwise operations, counting them one. So a query is run on five databases at little more than the price of
one.

A valid query that has nothing to do with the task needs three words, not six, and gets 0.4 of 0.9. An index saves at most
0.1 * 16 / 48 = 0.03: with a price of 0.02 a turn it pays where the column is known to have one, and not where that has to be
looked up first. No task asks for a query that finds nothing on one of the five databases (one drawn at random does so in about
0.3): there, every other query that finds nothing would be right. What remains of coincidence: a query drawn at random
has the right result on the database at hand in 0.07, on all five in 0.007.
"""

from dataclasses import dataclass
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs.tools.base import Operation, Outcome, ToolEnv, ToolParams, Turn, token_of

TABLES, COLUMNS, ROWS, BITS = 3, 4, 16, 3
VALUES = 2**BITS
DATABASES = 5  # the one at hand, then those that judge
TRIES = 8  # tasks drawn until one finds something everywhere
SLIPS = 0.15  # share of the demonstrations' turns that set a wrong word
SLOTS = ("select", "table", "where", "op", "value", "agg", "use_index")
SIZES = (COLUMNS, TABLES, COLUMNS, 3, VALUES, 4, 2)
_SELECT, _TABLE, _WHERE, _OP, _VALUE, _AGG, _INDEX, _INSPECT, _RUN, _SUBMIT = range(10)
_BELOW, _AT = 0, 1
_COUNT, _SUM, _MIN = 0, 1, 2
_NOTHING = -1  # the result where no row has a least or greatest value


@flax.struct.dataclass
class SqlQueryParams(ToolParams):
    """Traced settings. All is paid when a query is handed in.

    Attributes:
      match_weight: for the right result on the database at hand.
      syntax_weight: for a query that can be read: it has an aggregate, a column and a table, and all of a condition or none.
      runtime_weight: for one that can be read, and runs.
      scanned_weight: for the share of the database's 48 rows that it read.
    """

    max_steps: ArrayLike = np.int32(16)
    match_weight: ArrayLike = np.float32(0.5)
    syntax_weight: ArrayLike = np.float32(0.2)
    runtime_weight: ArrayLike = np.float32(0.2)
    scanned_weight: ArrayLike = np.float32(-0.1)


class SqlQueryState(NamedTuple):
    databases: jax.Array  # uint16 [TABLES * COLUMNS, BITS * DATABASES], a bit a row
    indexed: jax.Array  # int32 [TABLES], the column that has an index
    gold: jax.Array  # int32 [6], the slots of the query that is asked for, but for the index
    results: jax.Array  # int32 [DATABASES], its results
    query: jax.Array  # int32 [7], -1 where nothing is set
    inspected: jax.Array  # bool [TABLES]
    ran: jax.Array  # bool, as it is now
    solved: jax.Array  # bool, handed in and right on the others


@dataclass(frozen=True)
class SqlQuery:
    """The rules."""

    name = "SqlQuery-v0"
    components = ("match", "syntax", "runtime", "scanned")
    task_length = 6
    reply_length = 2
    max_turns = 16
    default_params = SqlQueryParams()
    probabilities = ()

    @property
    def operations(self) -> tuple[Operation, ...]:
        columns, tables, numbers = (self._numbered(*kind) for kind in (("column", COLUMNS), ("table", TABLES), ("", VALUES)))
        return (
            Operation("select", columns, latency=1),
            Operation("table", tables, latency=1),
            Operation("where", columns, latency=1),
            Operation("op", ("lt", "eq", "gt"), latency=1),
            Operation("value", numbers, latency=1),
            Operation("agg", ("count", "sum", "min", "max"), latency=1),
            Operation("use_index", ("no", "yes"), latency=1),
            Operation("inspect_table", tables, latency=50, cacheable=True),
            Operation("run", latency=100),
            Operation("submit", latency=100),
        )

    @property
    def words(self) -> tuple[str, ...]:
        numbers = self._numbered("", 16)  # the digits of results, in base 16
        queries = ("lt", "eq", "gt", "count", "sum", "min", "max", "no", "yes")
        tasks = ("below", "exactly", "above", "how_many", "total", "least", "most")
        replies = ("ok", "same", "syntax_error", "no_rows", "no_index", "right", "wrong")
        return (*numbers, *self._numbered("column", COLUMNS), *self._numbered("table", TABLES), *queries, *tasks, *replies)

    def begin(self, key: jax.Array, params: SqlQueryParams) -> SqlQueryState:
        del params
        row_key, index_key, task_key = jax.random.split(key, 3)
        databases = jax.random.bits(row_key, (TABLES * COLUMNS, BITS * DATABASES), jnp.uint16)
        slot_keys = jax.random.split(task_key, _AGG + 1)
        drawn = [jax.random.randint(slot_keys[i], (TRIES,), 0, SIZES[i]) for i in range(_AGG + 1)]
        tries = jnp.stack(drawn, axis=1)  # [TRIES, 6]
        found = jax.vmap(lambda query: jnp.all(_rows(databases, query) != 0))(tries)  # [TRIES]
        # if all fail, as in one of twenty thousand: below 7 is found nowhere but among sevens alone
        last = tries[0].at[_OP].set(_BELOW).at[_VALUE].set(VALUES - 1)
        gold = jnp.where(jnp.any(found), tries[jnp.argmax(found)], last)
        return SqlQueryState(
            databases=databases,
            indexed=jax.random.randint(index_key, (TABLES,), 0, COLUMNS),
            gold=gold,
            results=_results(databases, gold, _rows(databases, gold)),
            query=jnp.full(len(SLOTS), -1, jnp.int32),
            inspected=jnp.zeros(TABLES, bool),
            ran=jnp.bool_(False),
            solved=jnp.bool_(False),
        )

    def task(self, state: SqlQueryState) -> jax.Array:
        """How many (or the total, least, most) of a column of a table have a column below (or exactly, or above) a value."""
        first = [token_of(self, word) for word in ("how_many", "column_0", "table_0", "column_0", "below", "0")]
        return jnp.array(first) + state.gold[jnp.array([_AGG, _SELECT, _TABLE, _WHERE, _OP, _VALUE])]

    def available(self, state: SqlQueryState) -> None:
        del state

    def call(self, state: SqlQueryState, operation: jax.Array, argument: jax.Array, params: SqlQueryParams) -> Outcome:
        del params
        sets, inspects, runs, submits = operation <= _INDEX, operation == _INSPECT, operation == _RUN, operation == _SUBMIT
        executes = runs | submits
        query = jnp.where(jnp.arange(len(SLOTS)) == operation, argument, state.query)
        looked_at = inspects & (jnp.arange(TABLES) == argument)
        same = jnp.where(
            sets, jnp.all(query == state.query), jnp.where(inspects, jnp.any(looked_at & state.inspected), state.ran)
        )

        conditions = query[_WHERE : _VALUE + 1] >= 0
        filtered = jnp.all(conditions)
        readable = (query[_SELECT] >= 0) & (query[_TABLE] >= 0) & (query[_AGG] >= 0) & (filtered | ~jnp.any(conditions))
        rows = jnp.where(filtered, _rows(state.databases, query), jnp.uint16(2**ROWS - 1))  # [DATABASES]
        results = _results(state.databases, query, rows)  # [DATABASES]
        column = _entry(state.indexed, query[_TABLE])
        uses_index = query[_INDEX] == 1
        no_index = uses_index & ~(filtered & (query[_WHERE] == column))
        no_rows = results[0] == _NOTHING
        works = readable & ~no_index & ~no_rows
        scanned = jnp.where(uses_index, jax.lax.population_count(rows[0]).astype(jnp.int32), ROWS)
        match = works & (results[0] == state.results[0])
        paid = submits.astype(jnp.float32)

        word = {word: token_of(self, word) for word in ("ok", "same", "syntax_error", "no_rows", "no_index", "right", "wrong")}
        failure = jnp.where(no_index, word["no_index"], word["no_rows"])
        failure = jnp.where(readable, failure, word["syntax_error"])
        verdict = jnp.where(submits, jnp.where(match, word["right"], word["wrong"]), token_of(self, "0") + results[0] // 16)
        looked_up = token_of(self, "column_0") + _entry(state.indexed, argument)
        said = jnp.where(sets, jnp.where(same, word["same"], word["ok"]), jnp.where(inspects, looked_up, verdict))
        said = jnp.where(executes & ~works, failure, said)
        low = jnp.where(runs & works, token_of(self, "0") + results[0] % 16, 0)
        return Outcome(
            state=state._replace(
                query=query,
                inspected=state.inspected | looked_at,
                ran=jnp.where(sets, state.ran & same, state.ran | runs),
                solved=state.solved | (submits & works & jnp.all(results[1:] == state.results[1:])),
            ),
            reply=jnp.stack([said, low]).astype(jnp.int32),
            amounts={
                "match": paid * match,
                "syntax": paid * readable,
                "runtime": paid * works,
                "scanned": paid * readable * ~no_index * scanned / (TABLES * ROWS),
            },
            terminated=submits,
            error=executes & ~works,
            redundant=~submits & same,
        )

    def performance(self, state: SqlQueryState) -> jax.Array:
        """The right result on all of the other databases."""
        return state.solved.astype(jnp.float32)

    def scripted(self, script: str, key: jax.Array, state: SqlQueryState) -> tuple[jax.Array, jax.Array]:
        """optimal: the six words. sft: looks the table up, slips, and runs before it submits. hack: counts a whole table."""
        slots = jnp.arange(len(SLOTS))
        aim = jnp.concatenate([state.gold, jnp.array([-1])])
        if script == "hack":
            aim = jnp.where(slots == _AGG, _COUNT, jnp.where((slots == _SELECT) | (slots == _TABLE), 0, -1))
        wrong = state.query != aim
        slot = jnp.argmax(wrong)
        operation = jnp.where(jnp.any(wrong), slot, _SUBMIT)
        argument = jnp.where(jnp.any(wrong), _entry(aim, slot), 0)
        if script == "sft":
            slip_draw, slot_draw, value_draw = jax.random.uniform(key, (3,))
            table = state.gold[_TABLE]
            operation = jnp.where((operation == _SUBMIT) & ~state.ran, _RUN, operation)
            slips = (slip_draw < SLIPS) & (operation != _SUBMIT)
            slip = (slot_draw * (_AGG + 1)).astype(jnp.int32)
            value = (value_draw * _entry(jnp.array(SIZES), slip)).astype(jnp.int32)
            operation, argument = jnp.where(slips, slip, operation), jnp.where(slips, value, argument)
            looks = ~_entry(state.inspected, table)
            operation, argument = jnp.where(looks, _INSPECT, operation), jnp.where(looks, table, argument)
        return operation.astype(jnp.int32), argument.astype(jnp.int32)

    def _numbered(self, kind: str, count: int) -> tuple[str, ...]:
        return tuple(f"{kind}_{i}" if kind else str(i) for i in range(count))


def _entry(values: jax.Array, index: jax.Array) -> jax.Array:
    """Of a short array [n], by comparing; nothing (0) where the index is out of range."""
    return jnp.sum(jnp.where(jnp.arange(values.size) == index, values, 0), dtype=jnp.int32).astype(values.dtype)


def _column(databases: jax.Array, table: jax.Array, column: jax.Array) -> jax.Array:
    """Its bits, uint16 [BITS, DATABASES], least first."""
    place = jnp.clip(table * COLUMNS + column, 0, TABLES * COLUMNS - 1)
    return databases.at[place].get(mode="promise_in_bounds").reshape(BITS, DATABASES)


def _rows(databases: jax.Array, query: jax.Array) -> jax.Array:
    """The rows for which the query's condition holds, uint16 [DATABASES], a bit a row."""
    bits = _column(databases, query[_TABLE], query[_WHERE])
    below, equal = jnp.zeros(DATABASES, jnp.uint16), jnp.full(DATABASES, 2**ROWS - 1, jnp.uint16)
    for b in reversed(range(BITS)):
        given = ((query[_VALUE] >> b) & 1) != 0
        below = below | jnp.where(given, equal & ~bits[b], jnp.uint16(0))
        equal = equal & jnp.where(given, bits[b], ~bits[b])
    above = ~(below | equal)
    return jnp.where(query[_OP] == _BELOW, below, jnp.where(query[_OP] == _AT, equal, above))


def _results(databases: jax.Array, query: jax.Array, rows: jax.Array) -> jax.Array:
    """The query's results over the given rows, int32 [DATABASES]."""
    bits = _column(databases, query[_TABLE], query[_SELECT])
    least = query[_AGG] == _MIN
    extreme, total, left = jnp.zeros(DATABASES, jnp.int32), jnp.zeros(DATABASES, jnp.int32), rows
    for b in reversed(range(BITS)):
        total = total + (jax.lax.population_count(rows & bits[b]).astype(jnp.int32) << b)
        wanted = left & jnp.where(least, ~bits[b], bits[b])  # rows of those left that have the better bit
        left = jnp.where(wanted != 0, wanted, left)
        extreme = extreme + (((wanted != 0) != least).astype(jnp.int32) << b)
    extreme = jnp.where(rows == 0, _NOTHING, extreme)
    count = jax.lax.population_count(rows).astype(jnp.int32)
    return jnp.where(query[_AGG] == _COUNT, count, jnp.where(query[_AGG] == _SUM, total, extreme))


def sql_query(*, turn: Turn = "single", mask: bool = False, window: int | None = None) -> ToolEnv:
    """Write the query that the task asks for.

    Args:
      turn: what an action is: a whole call (single), or a word of it (pair).
      mask: whether observations hold action_mask.
      window: tokens of the episode that are shown; unset, only what the last action added.
    """
    return ToolEnv(SqlQuery(), turn, mask, window)
