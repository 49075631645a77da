"""Worlds in words: exact descriptions, and actions that are read as they stand or not at all."""

import dataclasses
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent.envs import grid, gridworld, symbols, text, tools
from jaxagent.envs.text import INVALID
from jaxagent.types import DictSpace

KEY = jax.random.key(3)
TOOLS = [(name, turn) for name in sorted(tools.ENVS) for turn in ("single", "pair")]
GRIDS = ("MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0", "BabyAI-GoToRedBallGrey-v0", "Collector-v0")
STILL = [name for name in GRIDS if "Obstacles" not in name]  # where nothing moves by itself
ROOT = Path(__file__).parent.parent


@functools.cache
def start(name: str, **options):
    env, params = ja.make(name, **options)
    observation, state = jax.jit(env.reset)(KEY, params)
    return env, params, observation, state


def observed(env, words: str) -> dict:
    """The observation of a tool world that shows these words."""
    tokens = np.zeros(env.spec.observation["tokens"].shape, np.int32)
    numbers = [env.vocabulary.index(word) for word in words.split()]
    place = len(tokens) - len(numbers) if env.window else 0
    tokens[place : place + len(numbers)] = numbers
    return {"tokens": tokens, "num_tokens": np.int32(len(numbers))}


# actions ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "turn"), TOOLS)
def test_choices_of_tool_worlds_are_what_the_mask_allows(name, turn):
    env, params, _, state = start(name, turn=turn)
    step, rng = jax.jit(env.step), np.random.default_rng(0)
    for _ in range(8):
        choices, allowed = text.choices(env, state), np.flatnonzero(env.action_mask(state))
        assert [text.parse(env, state, choice) for choice in choices] == allowed.tolist()
        assert [text.render_action(env, state, action) for action in allowed] == choices
        _check_grammar(text.grammar(env, state), choices)
        for action in {INVALID, *range(env.num_actions + 1)} - set(allowed.tolist()):
            with pytest.raises(ValueError, match=rf"action: expected one of .*, got {action}"):
                text.render_action(env, state, action)
        state = step(KEY, state, int(rng.choice(allowed)), params)[1]


@pytest.mark.parametrize("name", GRIDS)
def test_choices_of_grid_worlds_are_all_actions(name):
    env, _, _, state = start(name)
    choices = text.choices(env, state)
    assert [text.parse(env, state, choice) for choice in choices] == list(range(env.spec.action.n))
    assert [text.render_action(env, state, action) for action in range(env.spec.action.n)] == choices
    _check_grammar(text.grammar(env, state), choices)


def _check_grammar(grammar: str, choices: list[str]) -> None:
    """It matches the choices, and nothing that is one but for a letter."""
    assert len(set(choices)) == len(choices)
    for choice in choices:
        assert re.fullmatch(grammar, choice)
        for wrong in {choice[1:], choice[:-1], choice + "x", "x" + choice, choice.upper(), choice + choice, f" {choice}"}:
            assert wrong in choices or not re.fullmatch(grammar, wrong)


@pytest.mark.fast
def test_actions_by_name():
    assert len(text.GRID_ACTIONS) == grid.NUM_ACTIONS
    assert all(getattr(grid, name.upper()) == action for action, name in enumerate(text.GRID_ACTIONS))
    assert all(getattr(symbols, name.upper()) == action for action, name in enumerate(text.MOVES))


def test_only_space_around_an_action_is_forgiven():
    env, _, _, state = start("ToolSelect-v0")
    assert text.parse(env, state, " \n\tget(fact_0)\r\n") == 2
    for wrong in (
        *(
            "",
            " ",
            "get",
            "fact_0",
            "get()",
            "get(fact_8)",
            "answer",
            "answer ()",
            "Answer()",
            "answer();",
            "answer() answer()",
        ),
        *("get( fact_0 )", "get(fact_0", "get('fact_0')", "do not answer()", "answer() or login()", "2", "-1", "`login()`"),
    ):
        assert text.parse(env, state, wrong) == INVALID, wrong
    env, _, _, state = start("MiniGrid-DoorKey-5x5-v0")
    assert text.parse(env, state, "forward\n") == grid.FORWARD
    for wrong in ("go forward", "forward forward", "Forward", "up", "lefty", "pick up", "do not go left"):
        assert text.parse(env, state, wrong) == INVALID, wrong
    with pytest.raises(ValueError, match="text: expected a string, got None"):
        text.parse(env, state, None)


def test_reading_an_action_out_of_a_sentence_is_unsafe():
    """What goes wrong where the first name that a text contains counts, and otherwise the first action; and not here."""

    def careless(line: str, names: list[str]) -> int:
        return next((i for i, name in enumerate(names) if name.lower() in line.lower()), 0)

    names = ["noop", "go_left", "go_right"]
    assert careless("do not go_left", names) == names.index("go_left"), "it does what it was told not to do"
    assert careless("snoop around", names) == names.index("noop"), "a name in a longer word"
    assert careless("not go_left, but go_right", names) == names.index("go_left"), "the order of names decides"
    assert careless("I cannot say", names) == 0, "a failure looks like an action"

    env, _, _, state = start("MiniGrid-DoorKey-5x5-v0")
    names = text.choices(env, state)
    for line in ("do not turn left", "leftover", "not left, but right", "I cannot say", ""):
        assert 0 <= careless(line, names) < len(names)
        assert text.parse(env, state, line) == INVALID


def test_a_word_means_what_it_means_in_its_turn():
    env, params, _, state = start("ToolSelect-v0", turn="pair")
    assert text.choices(env, state) == ["login", "lookup", "get", "pair", "answer"]
    assert text.parse(env, state, "answer") == 4 and text.parse(env, state, "fact_4") == INVALID
    state = env.step(KEY, state, text.parse(env, state, "get"), params)[1]
    assert text.choices(env, state) == [f"fact_{i}" for i in range(8)]
    assert text.parse(env, state, "fact_4") == 4 and text.parse(env, state, "answer") == INVALID


@pytest.mark.parametrize(("turn", "line"), [("single", "edit_test(test_0)"), ("pair", "edit_test")])
def test_calls_that_are_not_available_are_no_choice(turn, line):
    env, params = ja.make("CodeFix-v0", turn=turn, params={"tests_locked": True})
    state = env.reset(KEY, params)[1]
    assert line not in text.choices(env, state) and text.parse(env, state, line) == INVALID
    state = env.reset(KEY, params.replace(tests_locked=np.bool_(False)))[1]
    assert text.parse(env, state, line) >= 0


@pytest.mark.parametrize(("name", "options"), [(name, {"turn": turn}) for name, turn in TOOLS] + [(name, {}) for name in STILL])
def test_invalid_takes_a_step_and_does_nothing(name, options):
    env, params, _, state = start(name, **options)
    observation, after, _, terminated, truncated, info = jax.jit(env.step)(KEY, state, text.parse(env, state, "hm"), params)
    assert not terminated and not truncated
    if options:
        jax.tree.map(np.testing.assert_array_equal, after.world, state.world)
        assert info["totals"]["invalid"] == info["totals"]["turns"] == 1
        assert text.describe(env, observation) == "invalid"
    else:
        assert after.step_count == 1
        for field in ("cells", "xy", "position", "direction", "carrying"):
            np.testing.assert_array_equal(getattr(after, field, 0), getattr(state, field, 0))
        assert text.describe(env, observation) == text.describe(env, state)


def test_invalid_does_not_turn_where_there_are_three_actions():
    env, params, _, state = start("MiniGrid-Dynamic-Obstacles-5x5-v0")
    assert text.choices(env, state) == ["left", "right", "forward"] and text.parse(env, state, "pickup") == INVALID
    after = jax.jit(env.step)(KEY, state, INVALID, params)[1]
    assert after.direction == state.direction and after.position == state.position


# descriptions: tool worlds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        ({}, "fact_0 fact_1 fact_6 fact_7", "task: fact_0 fact_1 fact_6 fact_7"),
        ({}, "login ok", "login() -> ok"),
        ({}, "get fact_3 not_logged_in", "get(fact_3) -> not_logged_in"),
        ({}, "invalid", "invalid"),
        ({"turn": "pair"}, "fact_0 fact_1", "fact_0 fact_1"),
        ({"turn": "pair"}, "pair", "pair(...)"),
        ({"turn": "pair"}, "pair_2 ok", "pair_2 ok"),
        ({"turn": "pair"}, "answer wrong", "answer() -> wrong"),
        (
            {"window": 10},
            "fact_0 fact_1 login ok invalid get fact_0",
            "task: fact_0 fact_1\nlogin() -> ok\ninvalid\nget(fact_0)",
        ),
        ({"window": 10}, "fact_0 ok invalid login ok lookup ok get fact_1 ok", None),
        (
            {"window": 10, "turn": "pair"},
            "fact_0 get invalid invalid get",
            "task: fact_0\nget(...) -> invalid\ninvalid\nget(...)",
        ),
    ],
)
def test_tokens_in_words(options, words, expected):
    env, _ = ja.make("ToolSelect-v0", **options)
    cut = "... fact_0 ok\ninvalid\nlogin() -> ok\nlookup() -> ok\nget(fact_1) -> ok"
    assert text.describe(env, observed(env, words)) == (expected or cut)


def test_replies_of_several_words():
    env, _ = ja.make("ArgFill-v0")
    assert text.describe(env, observed(env, "submit 422 slot_2")) == "submit() -> 422 slot_2"
    assert text.describe(env, observed(env, "value_1 unsaid value_0 value_0")) == "task: value_1 unsaid value_0 value_0"


@pytest.mark.parametrize(("name", "turn"), TOOLS)
@pytest.mark.parametrize("script", ["optimal", "sft"])
def test_an_episode_in_text_pays_what_its_actions_pay(name, turn, script):
    """The same episode twice: by numbers, and by lines of text."""
    env, params, observation, state = start(name, turn=turn)
    step, call = jax.jit(env.step), jax.jit(env.world.scripted, static_argnums=0)
    by_text, seen, lines = state, [observation], []
    for key in jax.random.split(KEY, env.spec.max_steps):
        action = int(env.action_of(state, *call(script, key, state.world)))
        place = np.flatnonzero(env.action_mask(state)).tolist().index(action)
        lines.append(text.choices(env, by_text)[place])
        expected = step(key, state, action, params)
        given = step(key, by_text, text.parse(env, by_text, lines[-1]), params)
        jax.tree.map(np.testing.assert_array_equal, given, expected)  # rewards and all
        state, (observation, by_text, _, terminated, truncated, info) = expected[1], given
        seen.append(observation)
        if terminated or truncated:
            break
    assert info["success"] or script == "sft"
    task, *turns = text.transcript(env, seen).splitlines()
    assert task.startswith("task: ") and len(turns) == info["totals"]["turns"]
    said = "".join(line.partition(" -> ")[0] for line in turns)
    assert (said if turn == "single" else re.sub(r"[()]", "", said)) == "".join(lines)


def test_a_window_is_a_transcript():
    env, params, observation, state = start("ToolSelect-v0")
    windowed, _, _, windowed_state = start("ToolSelect-v0", window=64)
    seen = [observation]
    for action in (2, 0, -1, 1, 14):
        observation, state, *_ = env.step(KEY, state, action, params)
        shown, windowed_state, *_ = windowed.step(KEY, windowed_state, action, params)
        seen.append(observation)
        assert text.describe(windowed, shown) == text.describe(windowed, windowed_state) == text.transcript(env, seen)
    with pytest.raises(ValueError, match="window: expected None"):
        text.transcript(windowed, [shown])


@pytest.mark.parametrize(("name", "turn"), TOOLS)
def test_hidden_parts_of_tool_worlds_are_not_told(name, turn):
    env, _, observation, state = start(name, turn=turn)
    hidden = state._replace(world=jax.tree.map(jnp.ones_like, state.world))
    assert text.describe(env, state) == text.describe(env, hidden) == text.describe(env, observation)


# descriptions: grid worlds ----------------------------------------------------------------------------------------------------

DOOR_KEY = "mission: use the key to open the door and then get to the goal\n"


def viewed(env, things: dict[tuple[int, int], int], direction: int = 0) -> dict:
    """An observation of an empty view with these symbols, by steps ahead and to the right."""
    image = np.full((7, 7), symbols.EMPTY_CELL, np.uint8)
    for (ahead, aside), symbol in things.items():
        image[3 + aside, 6 - ahead] = symbol
    return env.observe(env.reset(KEY, env.default_params)[1]) | {"image": image, "direction": np.int32(direction)}


def test_a_view_in_words():
    env, _ = ja.make("MiniGrid-DoorKey-5x5-v0")
    things = {
        (2, -1): symbols.symbol(symbols.DOOR_LOCKED, symbols.RED),
        (2, 1): symbols.symbol(symbols.DOOR_CLOSED, symbols.GREY),
        (0, -3): symbols.symbol(symbols.DOOR_OPEN, symbols.BLUE),
        (1, 0): symbols.symbol(symbols.BOX, symbols.PURPLE),
        (0, 1): symbols.symbol(symbols.BALL, symbols.GREEN),
        (6, 3): symbols.GOAL_CELL,
        (5, 0): symbols.LAVA_CELL,
        (3, 0): symbols.WALL_CELL,
        (4, 0): symbols.WALL_CELL,
        (0, -2): symbols.WALL_CELL,
        (4, 2): symbols.symbol(symbols.UNSEEN, 0),
        (0, 0): symbols.symbol(symbols.KEY, symbols.YELLOW),
    }
    assert text.describe(env, viewed(env, things, symbols.UP)) == DOOR_KEY + "\n".join(
        [
            "facing: north",
            "carrying: a yellow key",
            "walls: 3 ahead, 2 left",
            "seen: a purple box 1 ahead",
            "seen: a green ball 1 right",
            "seen: a blue door (open) 3 left",
            "seen: a red door (locked) 2 ahead, 1 left",
            "seen: a grey door (closed) 2 ahead, 1 right",
            "seen: lava 5 ahead",
            "seen: a green goal 6 ahead, 3 right",
        ]
    )


def test_an_empty_view_in_words():
    env, _ = ja.make("MiniGrid-DoorKey-5x5-v0")
    expected = "facing: south\ncarrying: nothing\nwalls: none in line\nseen: nothing"
    assert text.describe(env, viewed(env, {}, symbols.DOWN)) == DOOR_KEY + expected
    beside = {(0, side): symbols.WALL_CELL for side in (-1, 3)}
    assert "walls: 1 left, 3 right\n" in text.describe(env, viewed(env, beside))


@pytest.mark.parametrize("name", ["MiniGrid-DoorKey-8x8-v0", "BabyAI-GoToSeqS5R2-v0"])
def test_encodings_say_the_same(name):
    env, params = ja.make(name)
    states = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(KEY, 8), params)[1]
    others = [
        dataclasses.replace(env, obs=obs, mission_obs=mission)
        for obs, mission in (("packed", "tokens"), ("symbolic", "leaves"), ("onehot", "leaves"))
    ]
    observations = [jax.jit(jax.vmap(other.observe))(states) for other in others]
    for i in range(8):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        expected = text.describe(env, state)
        assert expected.startswith(f"mission: {env.mission(state)}\n")
        for other, observation in zip(others, observations, strict=True):
            assert text.describe(other, jax.tree.map(lambda leaf, i=i: leaf[i], observation)) == expected
    assert text.describe(dataclasses.replace(env, obs="rgb"), state) == expected


def test_a_playground_has_no_mission():
    env, _, observation, _ = start("MiniGrid-Playground-v0")
    assert text.describe(env, observation).startswith("facing: ")


@pytest.mark.parametrize("name", ["MiniGrid-DoorKey-8x8-v0", "BabyAI-GoToRedBallGrey-v0", "MiniGrid-FourRooms-v0"])
def test_what_a_grid_world_hides_is_not_told(name):
    env, _, observation, state = start(name)
    index = jnp.arange(state.cells.size)
    xy = jnp.stack(env.frame.xy(index))
    inside = jnp.all((xy > 0) & (xy < jnp.array(env.level.size)[:, None] - 1), axis=0)
    dark = inside & ~env.frame.flatten(env.seen(state).T.astype(jnp.uint8)).astype(bool) & (state.cells != symbols.WALL_CELL)
    assert dark.any()
    hidden = state.replace(cells=jnp.where(dark, jnp.uint8(symbols.symbol(symbols.BALL, symbols.PURPLE)), state.cells))
    assert text.describe(env, hidden) == text.describe(env, state) == text.describe(env, observation)


def test_a_map_in_letters():
    env, params, _, state = start("Collector-v0")
    for move in ("right", "right", "up"):  # the wall stays
        state = env.step(KEY, state, text.parse(env, state, move), params)[1]
    expected = (
        "mission: collect the yellow balls, then go to a green goal\n"
        "legend: A you, R a yellow ball, G a green goal, W a wall\n"
        "..R....G\n"
        ".WW.....\n"
        "..A.R...\n"
        "..W...G."
    )
    assert text.describe(env, state) == expected
    symbolic = gridworld.make("Collector-v0", obs="symbolic")[0]
    assert text.describe(symbolic, symbolic.observe(state)) == text.describe(symbolic, state) == expected
    assert text.describe(gridworld.make("Collector-v0", obs="rgb")[0], state) == expected


def test_a_collector_that_reads_and_writes_text():
    env, params, _, state = start("Collector-v0")
    step, rewards = jax.jit(env.step), []
    for move in ["up", "up", "right", "right", "right", "down", "down", "right", "right", "right", "down"]:
        assert move in text.choices(env, state)
        _, state, reward, terminated, _, info = step(KEY, state, text.parse(env, state, move), params)
        rewards.append(float(reward))
    assert terminated and info["success"] and sum(rewards) == pytest.approx(5.74)


# wrong use --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([999, 5], r"tokens: expected 0 to \d+, got 999"),
        ([-3, 5], r"tokens: expected 0 to \d+, got -3"),
        ([0.5], "tokens: expected integers of one observation"),
    ],
)
def test_tokens_without_a_word(tokens, message):
    env, *_ = start("ToolSelect-v0")
    for show in (text.describe, lambda env, seen: text.transcript(env, [seen])):
        with pytest.raises(ValueError, match=message):
            show(env, {"tokens": np.array(tokens)})


def test_what_is_no_observation_or_no_state_of_the_world():
    env, _, seen, state = start("ToolSelect-v0")
    with pytest.raises(ValueError, match="tokens: expected an entry of the observation, got a"):
        text.describe(env, {"a": 1})
    assert text.transcript(env, []) == "" and text.transcript(env, seen) == text.transcript(env, [seen])
    other, *_, elsewhere = start("CodeFix-v0")
    with pytest.raises(ValueError, match="state: expected one of CodeFix-v0 with .* got one with a ToolSelectState"):
        text.choices(other, state)
    with pytest.raises(ValueError, match="state: expected one of ToolSelect-v0 with .* got one with a CodeFixState"):
        text.describe(env, elsewhere)


def test_one_at_a_time():
    env, params, _, state = start("ToolSelect-v0")
    observations, states = jax.vmap(env.reset, (0, None))(jax.random.split(KEY, 2), params)
    with pytest.raises(ValueError, match=r"tokens: expected integers of one observation, \[K\], got int32 \[2, 8\]"):
        text.describe(env, observations)
    for function in (text.choices, text.describe):
        with pytest.raises(ValueError, match="state: expected one; of several states take one"):
            function(env, states)
        with pytest.raises(ValueError, match="state: expected a ToolState, got tuple"):
            function(env, (1, 2))
    env, params, observation, state = start("Collector-v0")
    with pytest.raises(ValueError, match=r"image: expected one, \[8, 4\], got \[2, 8, 4\]"):
        text.describe(env, jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), observation))
    with pytest.raises(ValueError, match="state: expected one"):
        text.choices(env, jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), state))


def test_images_that_hold_no_symbols():
    for name, obs in (("MiniGrid-DoorKey-5x5-v0", "rgb"), ("MiniGrid-DoorKey-5x5-v0", "full"), ("Collector-v0", "rgb")):
        env, _, observation, _ = start(name, obs=obs)
        with pytest.raises(ValueError, match=f"obs: expected packed, symbolic or onehot, got '{obs}'"):
            text.describe(env, observation)


@pytest.mark.fast
def test_other_worlds_have_no_text():
    for function in (text.choices, text.describe):
        with pytest.raises(ValueError, match="env: expected a tool world, a grid world or Collector, got DictSpace"):
            function(DictSpace(()), {})


def test_the_documented_example_runs(capsys):
    section = (ROOT / "docs" / "tools.md").read_text().partition("## Text for language models")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.startswith("task: fact_")
