"""Tiles against the installed MiniGrid, grids, ASCII and files."""

import itertools
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import lockstep
import numpy as np
import pytest

from jaxagent import render, report
from jaxagent.envs import registry, symbols, text
from jaxagent.envs.symbols import symbol
from jaxagent.interop.farama import from_farama
from jaxagent.planners.scripted import scripted
from jaxagent.trained import Loaded
from jaxagent.types import Policy

gymnasium = pytest.importorskip("gymnasium")
farama = pytest.importorskip("minigrid.core.world_object")
Grid = pytest.importorskip("minigrid.core.grid").Grid

OBJECTS = {
    symbols.EMPTY: lambda colour: None,
    symbols.WALL: farama.Wall,
    symbols.FLOOR: farama.Floor,
    symbols.DOOR_OPEN: lambda colour: farama.Door(colour, is_open=True),
    symbols.DOOR_CLOSED: farama.Door,
    symbols.DOOR_LOCKED: lambda colour: farama.Door(colour, is_locked=True),
    symbols.KEY: farama.Key,
    symbols.BALL: farama.Ball,
    symbols.BOX: farama.Box,
    symbols.GOAL: farama.Goal,
    symbols.LAVA: lambda colour: farama.Lava(),
}
COLOURS = range(len(symbols.COLOUR_NAMES))
DIRECTIONS = (None, 0, 1, 2, 3)


def assert_tile_equals_farama(kind: int, colour: int, direction: int | None, highlight: bool, tile_size: int) -> None:
    thing = OBJECTS[kind](symbols.COLOUR_NAMES[colour])
    expected = Grid.render_tile(thing, agent_dir=direction, highlight=highlight, tile_size=tile_size)
    found = render.tile(kind, colour, agent_dir=direction, highlight=highlight, tile_size=tile_size)
    # MiniGrid averages in floating point, and drops the fraction where it copies the tile into the uint8 picture
    np.testing.assert_array_equal(found, expected.astype(np.uint8), f"{kind=} {colour=} {direction=} {highlight=}")


@pytest.mark.parametrize("kind", OBJECTS)
def test_small_tiles_equal_farama_in_all_combinations(kind):
    for colour, direction, highlight in itertools.product(COLOURS, DIRECTIONS, (False, True)):
        assert_tile_equals_farama(kind, colour, direction, highlight, 8)


@pytest.mark.parametrize("kind", OBJECTS)
def test_large_tiles_equal_farama(kind):
    """MiniGrid takes 0.1 s to draw one of these, so colours and directions are not crossed; the kinds share the directions."""
    for colour in COLOURS:
        assert_tile_equals_farama(kind, colour, None, colour % 2 == 0, 32)
    assert_tile_equals_farama(kind, kind % 6, kind % 4, kind % 3 == 0, 32)


def test_unseen_and_agent_kinds_look_empty():
    for kind in (symbols.UNSEEN, symbols.AGENT):
        np.testing.assert_array_equal(render.tile(kind, 0), render.tile(symbols.EMPTY, 0))


def test_tiles_are_cached_and_read_only():
    tile = render.tile(symbols.BALL, symbols.RED)
    assert tile is render.tile(symbols.BALL, symbols.RED)
    with pytest.raises(ValueError, match="read-only"):
        tile[0] = 1


def test_atlas_holds_every_symbol():
    atlas = render.atlas(8, agent_dir=2, highlight=True)
    assert atlas.shape == (256, 8, 8, 3) and atlas.dtype == np.uint8
    for kind, colour in itertools.product(range(13), COLOURS):
        expected = render.tile(kind, colour, agent_dir=2, highlight=True, tile_size=8)
        np.testing.assert_array_equal(atlas[symbol(kind, colour)], expected)
    np.testing.assert_array_equal(atlas[255], render.tile(symbols.EMPTY, 0, agent_dir=2, highlight=True, tile_size=8))


def test_grid_equals_farama():
    rng = np.random.default_rng(0)
    kinds, colours = rng.choice(list(OBJECTS), (5, 4)), rng.integers(0, 6, (5, 4))
    highlight = rng.random((5, 4)) < 0.5
    grid = Grid(5, 4)
    for x, y in np.ndindex(5, 4):
        grid.set(x, y, OBJECTS[kinds[x, y]](symbols.COLOUR_NAMES[colours[x, y]]))
    for agent_xy, agent_dir in (((3, 1), 2), ((-1, -1), None)):
        expected = grid.render(8, agent_xy, agent_dir, highlight_mask=highlight)
        agent = {} if agent_dir is None else {"agent_xy": agent_xy, "agent_dir": agent_dir}
        cells = symbol(kinds, colours).astype(np.uint8)
        found = render.render_rgb(cells, highlight=highlight, tile_size=8, **agent)
        assert found.shape == (32, 40, 3) and found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)


def world(see_through_walls: bool) -> Any:
    """A room of Farama's with the agent at (4, 5), looking up, ready to be furnished."""
    source = gymnasium.make("MiniGrid-Empty-8x8-v0").unwrapped
    source.reset(seed=0)
    source.see_through_walls = see_through_walls
    source.agent_pos, source.agent_dir = (4, 5), 3
    return source


def assert_pictures_equal_farama(source: Any) -> None:
    """The whole world with what is seen shaded, and the view."""
    env, _, state = from_farama(source, "rgb")
    np.testing.assert_array_equal(report.draw(env, state, tile_size=8), source.get_frame(tile_size=8))
    np.testing.assert_array_equal(env.observe(state)["image"], source.get_frame(tile_size=8, agent_pov=True))


@pytest.mark.parametrize("colour", symbols.COLOUR_NAMES)
def test_whatever_is_seen_carried_or_stood_on_equals_farama(colour: str) -> None:
    carried = (farama.Key(colour), farama.Ball(colour), farama.Box(colour, farama.Key("red")), None)
    stood_on = (farama.Door(colour, is_open=True), farama.Floor(colour), farama.Goal(), farama.Lava())
    for i, (hands, ground) in enumerate(zip(carried, stood_on, strict=True)):
        source = world(see_through_walls=i % 2 == 0)
        row = (farama.Door(colour, is_open=True), farama.Floor(colour), farama.Door(colour), farama.Box(colour))
        beyond = (farama.Ball(colour), farama.Key(colour), farama.Floor(colour), farama.Door(colour, is_locked=True))
        for x, (near, far) in enumerate(zip(row, beyond, strict=True), start=2):
            source.grid.set(x, 3, near)
            source.grid.set(x, 2, far)
        source.grid.set(4, 5, ground)
        source.carrying, source.agent_dir = hands, (3 + i) % 4
        assert_pictures_equal_farama(source)


@pytest.mark.parametrize(
    "name", ["BabyAI-BossLevel-v0", "MiniGrid-ObstructedMaze-Full-v1", "MiniGrid-LockedRoom-v0", "MiniGrid-Playground-v0"]
)
def test_levels_under_way_equal_farama(name: str) -> None:
    source = gymnasium.make(name).unwrapped
    lockstep.reset(source, 4)
    act = lockstep.adversarial_stream(source, np.random.default_rng(0))
    for _ in range(3):
        assert_pictures_equal_farama(source)
        for _ in range(25):
            source.step(act())


def small_grid() -> np.ndarray:
    """Two columns, four rows."""
    rows = (
        (symbols.WALL_CELL, symbols.LAVA_CELL),
        (symbols.GOAL_CELL, symbol(symbols.DOOR_LOCKED, symbols.GREY)),
        (symbols.EMPTY_CELL, symbol(symbols.BALL, symbols.YELLOW)),
        (symbols.UNSEEN, symbol(symbols.KEY, symbols.BLUE)),
    )
    return np.array(rows, np.uint8).T


def test_ascii():
    assert render.render_ascii(small_grid()) == "##~~\nGgLe\n. oy\n  kb"
    assert render.render_ascii(small_grid(), agent_xy=(0, 2), agent_dir=3) == "##~~\nGgLe\n^ oy\n  kb"
    assert render.render_ascii(small_grid(), agent_xy=(0, 1), agent_dir=0) == "##~~\n>GLe\n. oy\n  kb"


def test_importing_loads_no_imaging_library():
    program = "import sys, jaxagent.render; print([name for name in ('PIL', 'matplotlib') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_png_is_lossless_and_has_room_for_a_caption(tmp_path):
    from PIL import Image

    image = render.render_rgb(small_grid(), tile_size=8)
    render.save_png(tmp_path / "plain.png", image)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "plain.png")), image)
    render.save_png(tmp_path / "captioned.png", image, caption="go")
    captioned = np.asarray(Image.open(tmp_path / "captioned.png"))
    np.testing.assert_array_equal(captioned[:32], image)
    assert captioned.shape[0] > 32 and captioned[32:].max() > 200


def test_long_missions_are_wrapped(tmp_path):
    from PIL import Image

    mission = (
        "put the purple key on your left next to the yellow key in front of you and open the yellow door behind you, then "
        "pick up the grey box on your right and put the blue ball behind you next to the green door in front of you"
    )
    blank = np.zeros((72, 288, 3), np.uint8)
    heights = []
    for caption in (mission[:20], mission):
        render.save_png(tmp_path / "mission.png", blank, caption=caption)
        strip = np.asarray(Image.open(tmp_path / "mission.png"))[72:]
        assert strip.max() > 200 and strip[:, -4:].max() == 0  # nothing runs into the margin
        heights.append(len(strip))
    assert heights[1] > 3 * heights[0]


def test_the_mission_stands_below_the_picture(tmp_path):
    from PIL import Image

    env, params = registry.make("MiniGrid-GoToObject-6x6-N2-v0", max_steps=3)
    policy = Policy(init=lambda rows: (), act=lambda *given: ((), jnp.zeros(given[2].is_first.shape, jnp.int32), {}))
    loaded = Loaded(env, params, policy, None)
    first = next(report.play(*loaded, jax.random.key(0))).env_state
    size = 6 * 32
    report.save_episode(loaded, tmp_path / "a.png", seed=0)
    shown = np.asarray(Image.open(tmp_path / "a.png"))
    np.testing.assert_array_equal(shown[:size], report.draw(env, first))
    render.save_png(tmp_path / "b.png", report.draw(env, first), caption=env.mission(first))
    np.testing.assert_array_equal(shown, np.asarray(Image.open(tmp_path / "b.png")))
    report.save_episode(loaded, tmp_path / "a.gif", seed=0)
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 4
        assert gif.size[1] > len(shown)  # one more line counts the steps


def test_texts_become_pictures_of_one_size():
    short, long = render.render_text(["task: a", "task: a\n" + 40 * "word " + "\nlast"], width=120)
    assert short.shape == long.shape and short.shape[1] == 120
    blue, lit = (long[..., 2] > 0).any(1), long.any((1, 2))  # rows with white, and with anything
    assert short.any() and not short[..., 2].any()  # all of it is yellow
    assert np.flatnonzero(lit & ~blue).max() > np.flatnonzero(blue).max() > 60  # below many lines of white
    assert long[:, -8:].max() == 0


@pytest.mark.parametrize("options", [{}, {"turn": "pair"}, {"window": 12}], ids=["turns", "words", "window"])
def test_tool_worlds_are_told(options, tmp_path):
    from PIL import Image

    env, params = registry.make("ToolSelect-v0", **options)
    loaded = Loaded(env, params, scripted(env, "optimal"), None)
    moments = list(report.play(*loaded, jax.random.key(0)))
    lines = list(report.as_text(env, moments))
    assert lines[-1] == "answer() -> right" and moments[-1].total_reward > 0.5
    assert options or lines[0].startswith("task: fact_")
    report.save_episode(loaded, tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == len(moments) and gif.info["duration"] == 500  # ms
    report.save_episode(loaded, tmp_path / "a.png")
    end = moments[-1].env_state
    shown = env.observe(end) if env.window else [env.observe(moment.env_state) for moment in moments]
    told = text.describe(env, shown) if env.window else text.transcript(env, shown)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), *render.render_text([told]))
    assert len(told.splitlines()) > 1


def test_gif_keeps_every_frame_and_its_time(tmp_path):
    from PIL import Image

    frames = [render.render_rgb(small_grid(), agent_xy=(0, 2), agent_dir=direction, tile_size=32) for direction in range(4)]
    render.save_gif(tmp_path / "a.gif", frames, fps=5, captions=["one", "two", "a text of many words", "four"])
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 4 and gif.size[0] == 64 and gif.size[1] > 128
        for index, frame in enumerate(frames):
            gif.seek(index)
            assert gif.info["duration"] == (1200 if index == 3 else 200)  # ms, 1000 / 5, and a second for the last
            drawn = np.asarray(gif.convert("RGB"))[:128].astype(int)
            assert np.abs(drawn - frame).mean() < 2  # the palette of a GIF has 256 colours


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: render.tile(13, 0), "kind: expected 0 to 12, found 13"),
        (lambda: render.tile(1, 6), "colour: expected 0 to 5, found 6"),
        (lambda: render.tile(1, 0, agent_dir=4), "agent_dir: expected 0 to 3, found 4"),
        (lambda: render.atlas(0), "tile_size: expected at least 1"),
        (lambda: render.render_rgb(np.zeros((3, 3, 3), np.uint8)), "cells: expected uint8"),
        (lambda: render.render_rgb(np.zeros((3, 3))), "cells: expected uint8"),
        (lambda: render.render_ascii(np.full((2, 2), 15, np.uint8)), "15 at x=0, y=0 is no symbol"),
        (lambda: render.render_rgb(small_grid(), agent_xy=(2, 0), agent_dir=0), "agent_xy: expected a cell of the 2 x 4 grid"),
        (lambda: render.render_rgb(small_grid(), agent_xy=(0, 0)), "expected both or neither"),
        (lambda: render.render_rgb(small_grid(), highlight=np.ones((4, 2), bool)), "highlight: expected bool"),
        (lambda: render.save_gif("unwritten.gif", []), "frames: expected at least one"),
        (lambda: render.save_gif("unwritten.gif", [np.zeros((8, 8))]), "frames\\[0\\]: expected uint8"),
        (lambda: render.save_gif("unwritten.gif", [np.zeros((8, 8, 3), np.uint8)], fps=0), "fps: expected"),
        (lambda: render.save_gif("unwritten.gif", [np.zeros((8, 8, 3), np.uint8)], captions=[]), "captions: expected one"),
        (
            lambda: render.save_gif("unwritten.gif", [np.zeros((8, size, 3), np.uint8) for size in (8, 9)]),
            "frames\\[1\\]: expected the first frame's shape",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
