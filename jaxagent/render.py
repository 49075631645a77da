"""Pictures of grids: tiles, whole grids, ASCII, PNG and GIF. Plain numpy; Pillow is imported where a file is written.

Tiles equal MiniGrid 3.2's pixel for pixel. A tile is a stack of painted shapes in the unit square, drawn at three times its
size, brightened where the agent sees the cell, and averaged down. Letters: `W` columns, `H` rows, `t` tile size in pixels.
Cells are symbols (`jaxagent.envs.symbols`) indexed `[x, y]`; pictures are indexed `[row, column]`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxagent.envs import symbols

if TYPE_CHECKING:
    from PIL import Image

ASCII_LEGEND = """\
Two characters a cell. `##` wall, `. ` empty, `~~` lava, two blanks: not seen. Objects are a letter and a colour:
`o` ball, `k` key, `b` box, `G` goal, `_` floor, `/` open door, `|` closed door, `L` locked door;
`r` red, `g` green, `b` blue, `p` purple, `y` yellow, `e` grey.
The agent is `>`, `v`, `<` or `^`, followed by the letter of what it stands on (`@ ` where its direction is unknown)."""

_PALETTE = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [112, 39, 195], [255, 255, 0], [100, 100, 100]], np.uint8)
_BLACK, _ORANGE, _RED, _GREY = (np.array(rgb, np.uint8) for rgb in ((0, 0, 0), (255, 128, 0), (255, 0, 0), (100, 100, 100)))
_OVERSAMPLING = 3
_HIGHLIGHT = 0.30  # how far a seen cell is moved towards white
_DIRECTIONS, _KINDS, _COLOURS = 4, 13, len(symbols.COLOUR_NAMES)

_LETTERS = {
    symbols.FLOOR: "_",
    symbols.DOOR_OPEN: "/",
    symbols.DOOR_CLOSED: "|",
    symbols.DOOR_LOCKED: "L",
    symbols.KEY: "k",
    symbols.BALL: "o",
    symbols.BOX: "b",
    symbols.GOAL: "G",
}
_FIXED = {symbols.UNSEEN: "  ", symbols.EMPTY: ". ", symbols.WALL: "##", symbols.LAVA: "~~", symbols.AGENT: "@ "}
_COLOUR_LETTERS = "rgbpye"
_ARROWS = ">v<^"


class _Pixels(NamedTuple):
    """Pixel centres in the unit square."""

    x: np.ndarray  # [1, n]
    y: np.ndarray  # [n, 1]


Layer = tuple[np.ndarray, np.ndarray]  # where to paint [n, n] bool, the paint [3] uint8
Picture = Callable[[_Pixels, np.ndarray], Iterator[Layer]]


# shapes -----------------------------------------------------------------------------------------------------------------------


def _rectangle(at: _Pixels, left: float, right: float, top: float, bottom: float) -> np.ndarray:
    return (at.x >= left) & (at.x <= right) & (at.y >= top) & (at.y <= bottom)


def _disc(at: _Pixels, x: float, y: float, radius: float) -> np.ndarray:
    return (at.x - x) ** 2 + (at.y - y) ** 2 <= radius**2


def _stroke(at: _Pixels, start: tuple[float, float], end: tuple[float, float], radius: float) -> np.ndarray:
    """All points within `radius` of a segment."""
    (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
    along = np.clip(((at.x - x) * dx + (at.y - y) * dy) / (dx**2 + dy**2), 0, 1)
    return (at.x - x - along * dx) ** 2 + (at.y - y - along * dy) ** 2 <= radius**2


def _arrowhead(at: _Pixels, direction: int) -> np.ndarray:
    """A triangle with its base at x = 0.12 and its tip at x = 0.87, turned clockwise by `direction` quarters."""
    half_width = 0.31 * (0.87 - at.x) / (0.87 - 0.12)
    return np.rot90((at.x >= 0.12) & (np.abs(at.y - 0.50) < half_width), k=-direction)


# pictures of the kinds --------------------------------------------------------------------------------------------------------


def _blank(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield from ()


def _block(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0, 1, 0, 1), paint


def _floor(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0.031, 1, 0.031, 1), paint // 2


def _lava(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0, 1, 0, 1), _ORANGE
    for low in (0.3, 0.5, 0.7):  # three waves of four strokes
        high = low + 0.1
        crests = ((0.1, low), (0.3, high), (0.5, low), (0.7, high), (0.9, low))
        for start, end in zip(crests[:-1], crests[1:], strict=True):
            yield _stroke(at, start, end, 0.03), _BLACK


def _door_open(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0.88, 1, 0, 1), paint
    yield _rectangle(at, 0.92, 0.96, 0.04, 0.96), _BLACK


def _door_closed(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    for margin, fill in ((0.0, paint), (0.04, _BLACK), (0.08, paint), (0.12, _BLACK)):
        yield _rectangle(at, margin, 1 - margin, margin, 1 - margin), fill
    yield _disc(at, 0.75, 0.50, 0.08), paint


def _door_locked(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0, 1, 0, 1), paint
    yield _rectangle(at, 0.06, 0.94, 0.06, 0.94), (0.45 * paint).astype(np.uint8)
    yield _rectangle(at, 0.52, 0.75, 0.50, 0.56), paint


def _key(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0.50, 0.63, 0.31, 0.88), paint  # shaft
    yield _rectangle(at, 0.38, 0.50, 0.59, 0.66), paint  # teeth
    yield _rectangle(at, 0.38, 0.50, 0.81, 0.88), paint
    yield _disc(at, 0.56, 0.28, 0.190), paint  # ring
    yield _disc(at, 0.56, 0.28, 0.064), _BLACK


def _ball(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _disc(at, 0.5, 0.5, 0.31), paint


def _box(at: _Pixels, paint: np.ndarray) -> Iterator[Layer]:
    yield _rectangle(at, 0.12, 0.88, 0.12, 0.88), paint
    yield _rectangle(at, 0.18, 0.82, 0.18, 0.82), _BLACK
    yield _rectangle(at, 0.16, 0.84, 0.47, 0.53), paint


_PICTURES: dict[int, Picture] = {
    symbols.UNSEEN: _blank,
    symbols.EMPTY: _blank,
    symbols.AGENT: _blank,  # a symbol has no direction: the agent is drawn by `agent_dir`
    symbols.WALL: _block,
    symbols.FLOOR: _floor,
    symbols.GOAL: _block,
    symbols.LAVA: _lava,
    symbols.DOOR_OPEN: _door_open,
    symbols.DOOR_CLOSED: _door_closed,
    symbols.DOOR_LOCKED: _door_locked,
    symbols.KEY: _key,
    symbols.BALL: _ball,
    symbols.BOX: _box,
}


# tiles ------------------------------------------------------------------------------------------------------------------------


def tile(kind: int, colour: int, *, agent_dir: int | None = None, highlight: bool = False, tile_size: int = 32) -> np.ndarray:
    """One cell as a picture.

    Args:
      kind, colour: as in `jaxagent.envs.symbols`; a door's state is in its kind.
      agent_dir: 0 right, 1 down, 2 left, 3 up to draw the agent over the cell.
      highlight: whether to brighten the cell.
      tile_size: edge in pixels, at least 1.

    Returns:
      uint8 `[t, t, 3]`, cached and read-only.

    Raises:
      ValueError: an unknown kind, colour or direction, or a tile size below 1.
    """
    _check_range("kind", kind, _KINDS)
    _check_range("colour", colour, _COLOURS)
    if agent_dir is not None:
        _check_range("agent_dir", agent_dir, _DIRECTIONS)
    _check_tile_size(tile_size)
    return _tile(int(kind), int(colour), None if agent_dir is None else int(agent_dir), bool(highlight), int(tile_size))


def atlas(tile_size: int = 32, *, agent_dir: int | None = None, highlight: bool = False) -> np.ndarray:
    """The tiles of all 256 symbols, to be gathered by symbol. Undefined symbols look like empty cells.

    Returns:
      uint8 `[256, t, t, 3]`, cached and read-only; arguments as in `tile`.
    """
    _check_tile_size(tile_size)
    if agent_dir is not None:
        _check_range("agent_dir", agent_dir, _DIRECTIONS)
    return _atlas(int(tile_size), None if agent_dir is None else int(agent_dir), bool(highlight))


@lru_cache(maxsize=4096)
def _tile(kind: int, colour: int, agent_dir: int | None, highlight: bool, tile_size: int) -> np.ndarray:
    size = tile_size * _OVERSAMPLING
    centres = (np.arange(size) + 0.5) / size
    at = _Pixels(centres[None, :], centres[:, None])
    canvas = np.zeros((size, size, 3), np.uint8)
    canvas[(at.x <= 0.031) | (at.y <= 0.031)] = _GREY  # grid lines
    for mask, paint in _PICTURES[kind](at, _PALETTE[colour]):
        canvas[mask] = paint
    if agent_dir is not None:
        canvas[_arrowhead(at, agent_dir)] = _RED
    if highlight:
        canvas = (canvas + _HIGHLIGHT * (255 - canvas)).astype(np.uint8)
    blocks = canvas.reshape(tile_size, _OVERSAMPLING, tile_size, _OVERSAMPLING, 3)
    image = (blocks.sum(axis=(1, 3), dtype=np.int32) // _OVERSAMPLING**2).astype(np.uint8)
    image.flags.writeable = False
    return image


@lru_cache(maxsize=32)
def _atlas(tile_size: int, agent_dir: int | None, highlight: bool) -> np.ndarray:
    tiles = np.tile(_tile(symbols.EMPTY, 0, agent_dir, highlight, tile_size), (256, 1, 1, 1))
    for kind in range(_KINDS):
        for colour in range(_COLOURS):
            tiles[symbols.symbol(kind, colour)] = _tile(kind, colour, agent_dir, highlight, tile_size)
    tiles.flags.writeable = False
    return tiles


# grids ------------------------------------------------------------------------------------------------------------------------


def render_rgb(
    cells: np.ndarray,
    *,
    agent_xy: Sequence[int] | np.ndarray | None = None,
    agent_dir: int | None = None,
    highlight: np.ndarray | None = None,
    tile_size: int = 32,
) -> np.ndarray:
    """A grid as a picture.

    Args:
      cells: uint8 symbols `[W, H]`.
      agent_xy: where to draw the agent, with `agent_dir` 0 right, 1 down, 2 left, 3 up.
      highlight: bool `[W, H]`, the cells to brighten (what the agent sees).
      tile_size: edge of a cell in pixels.

    Returns:
      uint8 `[H * t, W * t, 3]`.

    Raises:
      ValueError: wrong shapes, unknown symbols, or an agent outside the grid.
    """
    cells = _checked_cells(cells)
    agent = _checked_agent(cells, agent_xy, agent_dir)
    tiles = atlas(tile_size)[cells]  # [W, H, t, t, 3]
    if highlight is None:
        highlight = np.zeros(cells.shape, bool)
    highlight = np.asarray(highlight)
    if highlight.shape != cells.shape or highlight.dtype != bool:
        raise ValueError(f"highlight: expected bool {cells.shape}, found {highlight.dtype} {highlight.shape}")
    tiles[highlight] = atlas(tile_size, highlight=True)[cells[highlight]]
    if agent is not None:
        x, y, direction = agent
        tiles[x, y] = atlas(tile_size, agent_dir=direction, highlight=bool(highlight[x, y]))[cells[x, y]]
    width, height = cells.shape
    return tiles.transpose(1, 2, 0, 3, 4).reshape(height * tile_size, width * tile_size, 3)


def render_ascii(cells: np.ndarray, *, agent_xy: Sequence[int] | np.ndarray | None = None, agent_dir: int | None = None) -> str:
    """A grid as text, a line a row and two characters a cell: see `ASCII_LEGEND`. Arguments as in `render_rgb`."""
    cells = _checked_cells(cells)
    agent = _checked_agent(cells, agent_xy, agent_dir)
    text = [[_characters(int(cell)) for cell in row] for row in cells.T]
    if agent is not None:
        x, y, direction = agent
        beneath = _LETTERS.get(symbols.kind_of(int(cells[x, y])), " ")
        text[y][x] = _ARROWS[direction] + beneath
    return "\n".join("".join(row).rstrip() for row in text)


def _characters(cell: int) -> str:
    kind = symbols.kind_of(cell)
    return _FIXED[kind] if kind in _FIXED else _LETTERS[kind] + _COLOUR_LETTERS[symbols.colour_of(cell)]


def render_text(texts: Sequence[str], *, width: int = 480) -> list[np.ndarray]:
    """Texts as pictures of one size, uint8 `[height, width, 3]`, the last line of each in yellow. Long lines are broken.

    Args:
      texts: at least one.
      width: in pixels.
    """
    from PIL import Image, ImageDraw, ImageFont

    margin, font = 8, ImageFont.load_default()
    ruler = ImageDraw.Draw(Image.new("RGB", (1, 1)))

    def broken(line: str) -> str:
        return _wrapped(line, width - 2 * margin, lambda part: ruler.textlength(part, font))

    def height(lines: str) -> int:
        return int(ruler.multiline_textbbox((0, 0), lines, font)[3]) if lines else 0

    parts = [text.splitlines() or [""] for text in texts]
    olds = ["\n".join(broken(line) for line in lines[:-1]) for lines in parts]
    news = [broken(lines[-1]) for lines in parts]
    wholes = [f"{old}\n{new}" if old else new for old, new in zip(olds, news, strict=True)]
    size = (width, max(map(height, wholes)) + 2 * margin)
    pictures = []
    for old, whole in zip(olds, wholes, strict=True):
        picture = Image.new("RGB", size)
        draw = ImageDraw.Draw(picture)
        draw.multiline_text((margin, margin), whole, "yellow", font)
        draw.multiline_text((margin, margin), old, "white", font)
        pictures.append(np.asarray(picture))
    return pictures


# files ------------------------------------------------------------------------------------------------------------------------


def save_png(path: str | Path, image: np.ndarray, *, caption: str | None = None) -> None:
    """Writes uint8 `[height, width, 3]` as a PNG, with `caption` in a strip below it."""
    (picture,) = _captioned([image], None if caption is None else [caption])
    picture.save(path, format="PNG")


def save_gif(path: str | Path, frames: Sequence[np.ndarray], *, fps: float = 8, captions: list[str] | None = None) -> None:
    """Writes uint8 frames `[height, width, 3]` of equal size as an endless GIF.

    Args:
      path: the file to write.
      frames: at least one picture.
      fps: frames a second, in (0, 50]; the format counts hundredths of a second. The last frame stays a second longer.
      captions: one text a frame, drawn in a strip below the pictures (missions).

    Raises:
      ValueError: no frames, frames of different shapes, or not one caption a frame.
    """
    if not 0 < fps <= 50:
        raise ValueError(f"fps: expected a number in (0, 50], found {fps}")
    first, *rest = _captioned(frames, captions)
    durations = [round(1000 / fps)] * len(frames)
    durations[-1] += 1000
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=durations, loop=0)


def _captioned(frames: Sequence[np.ndarray], captions: list[str] | None) -> "list[Image.Image]":
    """Frames as Pillow images, each above a strip of text; all strips are as high as the longest caption needs."""
    from PIL import Image, ImageDraw, ImageFont

    images = [Image.fromarray(frame) for frame in _checked_frames(frames)]
    if captions is None:
        return images
    if len(captions) != len(images):
        raise ValueError(f"captions: expected one for each of the {len(images)} frames, found {len(captions)}")
    margin, font = 4, ImageFont.load_default()
    width, height = images[0].size
    ruler = ImageDraw.Draw(images[0])
    texts = [_wrapped(caption, width - 2 * margin, lambda line: ruler.textlength(line, font)) for caption in captions]
    strip = max(int(ruler.multiline_textbbox((0, 0), text, font)[3]) for text in texts) + 2 * margin
    pictures = []
    for image, text in zip(images, texts, strict=True):
        picture = Image.new("RGB", (width, height + strip))
        picture.paste(image)
        ImageDraw.Draw(picture).multiline_text((margin, height + margin), text, "white", font)
        pictures.append(picture)
    return pictures


def _wrapped(text: str, width: float, length: Callable[[str], float]) -> str:
    """Breaks text between words too, so that lines are at most `width` long (a longer word has a line of its own)."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".lstrip()
            if line and length(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return "\n".join(lines)


# checks -----------------------------------------------------------------------------------------------------------------------


def _check_range(name: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise ValueError(f"{name}: expected 0 to {end - 1}, found {value}")


def _check_tile_size(tile_size: int) -> None:
    if tile_size < 1:
        raise ValueError(f"tile_size: expected at least 1 pixel, found {tile_size}")


def _checked_cells(cells: np.ndarray) -> np.ndarray:
    cells = np.asarray(cells)
    if cells.ndim != 2 or cells.dtype != np.uint8:
        raise ValueError(f"cells: expected uint8 [W, H], found {cells.dtype} {cells.shape}")
    unknown = np.argwhere((symbols.kind_of(cells) >= _KINDS) | (symbols.colour_of(cells) >= _COLOURS))
    if len(unknown):
        x, y = unknown[0]
        raise ValueError(f"cells: {cells[x, y]} at x={x}, y={y} is no symbol (kinds 0 to {_KINDS - 1}, colours 0 to 5)")
    return cells


def _checked_agent(
    cells: np.ndarray, agent_xy: Sequence[int] | np.ndarray | None, agent_dir: int | None
) -> tuple[int, int, int] | None:
    """Returns (x, y, direction), or None where no agent is to be drawn."""
    if agent_xy is None and agent_dir is None:
        return None
    if agent_xy is None or agent_dir is None:
        raise ValueError(f"agent_xy, agent_dir: expected both or neither, found {agent_xy} and {agent_dir}")
    x, y = (int(coordinate) for coordinate in agent_xy)
    width, height = cells.shape
    if not (0 <= x < width and 0 <= y < height):
        raise ValueError(f"agent_xy: expected a cell of the {width} x {height} grid, found ({x}, {y})")
    _check_range("agent_dir", int(agent_dir), _DIRECTIONS)
    return x, y, int(agent_dir)


def _checked_frames(frames: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.ascontiguousarray(frame) for frame in frames]
    if not arrays:
        raise ValueError("frames: expected at least one picture, found none")
    shape = arrays[0].shape
    for index, array in enumerate(arrays):
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
            raise ValueError(f"frames[{index}]: expected uint8 [height, width, 3], found {array.dtype} {array.shape}")
        if array.shape != shape:
            raise ValueError(f"frames[{index}]: expected the first frame's shape {shape}, found {array.shape}")
    return arrays
