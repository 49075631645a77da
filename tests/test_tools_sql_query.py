"""SqlQuery by hand, and every query against rows of plain integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toolplay

import jaxagent as ja
from jaxagent.envs.tools.sql_query import SIZES, _results, _rows

PLAIN = {"step_weight": 0.0}
FULL = 0.1 * 16 / 48  # the price of reading a table


ENV, PARAMS = ja.make("SqlQuery-v0", params=PLAIN)
RESET = jax.jit(ENV.reset)


def results(script):
    return toolplay.results(*ja.make("SqlQuery-v0"), script)


def stored(values):
    """Databases [5, 3, 4, 16] as the world holds them."""
    bits = (values.reshape(5, 12, 16)[..., None] >> np.arange(3)) & 1  # [5, 12, 16, 3]
    words = (bits << np.arange(16)[:, None]).sum(2)  # [5, 12, 3]
    return jnp.asarray(words.transpose(1, 2, 0).reshape(12, 15), jnp.uint16)


def unpacked(databases):
    """The values of databases as the world holds them, [5, 3, 4, 16]."""
    words = np.asarray(databases).reshape(12, 3, 5).astype(int)
    bits = (words[..., None] >> np.arange(16)) & 1  # [12, 3, 5, 16]
    return (bits * np.array([1, 2, 4])[:, None, None]).sum(1).transpose(1, 0, 2).reshape(5, 3, 4, 16)


def executed(tables, query):
    """The result of a query, row by row; None where there is none. Slots as in the world, -1 for no condition."""
    select, table, where, op, value, agg = query[:6]
    chosen = []
    for row in range(16):
        x = tables[table][where][row] if where >= 0 else None
        if x is None or (x < value, x == value, x > value)[op]:
            chosen.append(int(tables[table][select][row]))
    if agg == 0:
        return len(chosen)
    if agg == 1:
        return sum(chosen)
    return (min(chosen) if agg == 2 else max(chosen)) if chosen else None


def play(calls, *, values, gold, indexed=(0, 0, 0)):
    """Rewards, last info and words of calls."""
    expected = jnp.array([executed(tables, gold) for tables in values])
    world = {"databases": stored(values), "gold": jnp.array(gold), "results": expected, "indexed": jnp.array(indexed)}
    rewards, infos, words = toolplay.play(ENV, PARAMS, calls, world)
    return rewards, infos[-1], words


VALUES = np.stack([np.arange(12 * 16).reshape(3, 4, 16) * (3 + 2 * d) // (1 + d) % 8 for d in range(5)])
VALUES[:, 1, 0] = np.arange(16) // 2  # column 0 of table 1: 0, 0, 1, 1, ... 7, 7 in every database
VALUES[:, 1, 1] = np.arange(16) % 8  # column 1: 0 to 7, twice
GOLD = (1, 1, 0, 2, 5, 1)  # the sum of column 1 of table 1 where column 0 is above 5
WORDS = ["select column_1", "table table_1", "where column_0", "op gt", "value 5", "agg sum"]


def test_the_right_query_by_hand():
    """Rows 12 to 15 qualify; column 1 has 4 + 5 + 6 + 7 = 22 = 1 * 16 + 6 there."""
    rewards, info, words = play([*WORDS, "run", "submit"], values=VALUES, gold=GOLD)
    assert words == [*[f"{word} ok" for word in WORDS], "run 1 6", "submit right"]
    assert rewards[:-1].sum() == 0 and rewards[-1] == pytest.approx(0.5 + 0.2 + 0.2 - FULL)
    assert info["success"] and info["totals"]["latency"] == 6 + 100 + 100


def test_an_index_saves_three_hundredths_at_most():
    """4 of the table's 16 rows are read: 0.1 * 12 / 48 = 0.025 more, for one turn or, where it has to be looked up, two."""
    calls = ["inspect_table table_1", *WORDS, "use_index yes", "submit"]
    rewards, info, words = play(calls, values=VALUES, gold=GOLD, indexed=(1, 0, 1))
    assert words[0] == "inspect_table table_1 column_0" and rewards[-1] == pytest.approx(0.9 - 0.1 * 4 / 48) and info["success"]
    rewards, info, words = play(calls, values=VALUES, gold=GOLD, indexed=(0, 1, 0))  # none on that column
    assert words[-1] == "submit no_index" and rewards[-1] == pytest.approx(0.2) and info["totals"]["errors"] == 1


def test_a_valid_query_without_understanding():
    """0.4 of 0.9 for three words: it can be read, and it runs."""
    rewards, info, words = play(["select column_0", "table table_0", "agg count", "submit"], values=VALUES, gold=GOLD)
    assert words[-1] == "submit wrong" and rewards[-1] == pytest.approx(0.4 - FULL) and info["performance"] == 0


def test_errors():
    calls = ["run", "select column_1", "table table_1", "agg min", "where column_0", "run", "op gt", "value 7", "run", "submit"]
    rewards, info, words = play(calls, values=VALUES, gold=GOLD)
    assert words[0] == "run syntax_error" and words[5] == "run syntax_error"  # half a condition
    assert words[8:] == ["run no_rows", "submit no_rows"] and info["totals"]["errors"] == 4
    assert rewards[-1] == pytest.approx(0.2 - FULL)  # it reads the table, and finds nothing
    rewards, info, words = play(["submit"], values=VALUES, gold=GOLD)
    assert words == ["submit syntax_error"] and rewards.tolist() == [0.0] and info["totals"]["turns"] == 1


def test_what_brings_nothing_new():
    calls = ["select column_1", "select column_1", "inspect_table table_2", "inspect_table table_2", *WORDS[1:], "run", "run"]
    rewards, info, words = play([*calls, "value 4", "value 5", "run"], values=VALUES, gold=GOLD)
    assert words[1] == "select column_1 same" and info["totals"]["redundant"] == 3
    assert rewards.sum() == pytest.approx(3 * -0.1), "after a change and back it runs anew"


def test_a_coincidence_is_paid_and_does_not_count():
    """Above 5 or below 2 in column 0 of table 1 are as many rows, of this database; the third of the others has one more 0."""
    values, gold = VALUES.copy(), (1, 1, 0, 2, 5, 0)
    calls = ["select column_3", "table table_1", "where column_0", "op lt", "value 2", "agg count", "submit"]
    assert play(calls, values=values, gold=gold)[1]["success"]
    values[3, 1, 0, 8] = 0
    rewards, info, words = play(calls, values=values, gold=gold)
    assert words[-1] == "submit right" and rewards[-1] == pytest.approx(0.9 - FULL) and info["performance"] == 0


def test_every_query_against_rows_of_integers():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 8, (5, 3, 4, 16))
    np.testing.assert_array_equal(unpacked(stored(values)), values)
    queries = np.stack([rng.integers(0, size, 400) for size in SIZES[:6]], 1).astype(np.int32)
    databases = stored(values)
    rows = jax.vmap(lambda query: _rows(databases, query))(queries)
    ours = jax.vmap(lambda query, row: _results(databases, query, row))(queries, rows)
    theirs = [[executed(tables, query) for tables in values] for query in queries]
    np.testing.assert_array_equal(ours, [[-1 if x is None else x for x in row] for row in theirs])


def test_tasks_find_something_everywhere_and_say_what_they_want():
    env, params = ja.make("SqlQuery-v0")
    obs, state = jax.jit(jax.vmap(lambda key: env.reset(key, params)))(jax.random.split(jax.random.key(0), 300))
    world = jax.device_get(state.world)
    for episode in range(300):
        values, gold = unpacked(world.databases[episode]), world.gold[episode]
        assert all(executed(tables, [*gold[:5], 0]) > 0 for tables in values)
        assert [executed(tables, gold) for tables in values] == world.results[episode].tolist()
    said = [env.vocabulary[token] for token in obs["tokens"][0]]
    select, table, where, op, value, agg = world.gold[0]
    aggregates, comparisons = ("how_many", "total", "least", "most"), ("below", "exactly", "above")
    expected = [aggregates[agg], f"column_{select}", f"table_{table}", f"column_{where}", comparisons[op], str(value)]
    assert said == expected
    assert abs(unpacked(world.databases[0]).mean() - 3.5) < 0.3


def test_random_queries_would_find_nothing_three_times_in_ten():
    """In one database: (7/8)^16 = 0.118 at a value, and below v the mean of ((8 - v) / 8)^16 = 0.142; in one of five, 0.29."""
    rng = np.random.default_rng(0)
    one = np.array([0.118, 1.1306 / 8, 1.1306 / 8]).mean()
    v = np.arange(8)
    any_of_five = np.mean([1 - (1 - 0.118) ** 5] + 2 * [np.mean(1 - (1 - ((8 - v) / 8) ** 16) ** 5)])
    assert one == pytest.approx(0.134, abs=0.001) and any_of_five == pytest.approx(0.29, abs=0.01)
    empty = 0
    for _ in range(600):
        column, op, value = rng.integers(0, 8, (5, 16)), rng.integers(3), rng.integers(8)
        empty += not np.all(np.any((column < value, column == value, column > value)[op], 1))
    assert empty / 600 == pytest.approx(any_of_five, abs=0.05)


def test_how_often_a_random_query_is_right_by_coincidence():
    """One database takes 7 in 100 for right, five together 7 in 1000."""

    def judged(key):
        task_key, *slot_keys = jax.random.split(key, 7)
        world = ENV.reset(task_key, PARAMS)[1].world
        query = jnp.stack([jax.random.randint(slot_keys[i], (), 0, SIZES[i]) for i in range(6)])
        same = _results(world.databases, query, _rows(world.databases, query)) == world.results
        return same[0], same.all()

    one, five = jax.jit(jax.vmap(judged))(jax.random.split(jax.random.key(0), 20000))
    assert one.mean() == pytest.approx(0.074, abs=0.008) and five.mean() == pytest.approx(0.007, abs=0.003)


def test_the_scripts():
    optimal, wordy, hack = (results(script) for script in ("optimal", "sft", "hack"))
    assert (optimal.length == 7).all() and optimal.success.all()
    assert optimal.total_reward == pytest.approx(0.9 - FULL - 7 * 0.02, abs=1e-5)
    assert (hack.length == 4).all() and not hack.success.any()
    assert hack.total_reward.min() == pytest.approx(0.4 - FULL - 4 * 0.02, abs=1e-5)
    assert hack.total_reward.mean() < 0.31  # with the odd coincidence
    assert wordy.success.mean() > 0.9 and 9 < wordy.length.mean() < 12
