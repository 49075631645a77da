import io
import re

import pytest

from jaxagent.progress import Progress, compact


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(stream: io.StringIO, *, total: int = 100, start: int = 0) -> None:
    """Reports every tenth update, one second and 20,000 steps apart, and leaves a note after the first."""
    clock = Clock()
    with Progress(total, start=start, stream=stream, interval=3.0, clock=clock) as progress:
        for update in range(start + 10, total + 1, 10):
            clock.now += 1.0
            progress.report(update, env_steps=2000 * update, values={"return": update / 3})
            if update == start + 10:
                progress.note("saved [1]")


def test_lines_are_few_and_the_last_is_shown() -> None:
    """Reports at 1, 2, ... 10 s; lines at 1, 4, 7 and 10 s. 10 updates a second are 20k steps a second."""
    stream = io.StringIO()
    play(stream)
    assert stream.getvalue().splitlines() == [
        "update 10/100  - steps/s  eta -  return 3.333",
        "saved [1]",
        "update 40/100  20k steps/s  eta 0:00:06  return 13.33",
        "update 70/100  20k steps/s  eta 0:00:03  return 23.33",
        "update 100/100  20k steps/s  eta 0:00:00  return 33.33",
    ]


def test_the_last_report_is_shown_between_lines() -> None:
    stream = io.StringIO()
    play(stream, total=120)
    assert stream.getvalue().splitlines()[-1].startswith("update 120/120")


def test_a_resumed_run_has_its_own_rate() -> None:
    stream = io.StringIO()
    play(stream, start=50)
    assert "update 90/100  20k steps/s  eta 0:00:01" in stream.getvalue()


def test_more_than_was_expected_takes_no_negative_time() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(100, stream=stream, clock=clock) as progress:
        for update in (90, 120):
            clock.now += 10.0
            progress.report(update, env_steps=update, values={})
    assert stream.getvalue().splitlines()[-1] == "update 120/100  3 steps/s  eta 0:00:00"


def test_no_report_at_all() -> None:
    stream = io.StringIO()
    with Progress(5, stream=stream):
        pass
    assert stream.getvalue() == "update 0/5  - steps/s  eta -\n"


def test_what_is_not_known_yet_is_a_dash() -> None:
    stream = io.StringIO()
    with Progress(5, stream=stream) as progress:
        progress.report(1, env_steps=8, values={"return": float("nan"), "success": 0.0, "unfinished": "56%"})
    assert stream.getvalue() == "update 1/5  - steps/s  eta -  return -  success 0  unfinished 56%\n"


def test_a_stream_that_is_gone_stops_nothing() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    play(Broken())
    closed = io.StringIO()
    closed.close()
    with pytest.raises(ValueError):
        closed.write("")
    stream = io.StringIO()
    with Progress(5, stream=stream) as progress:
        stream.close()
        progress.note("late")


def test_a_terminal_gets_a_bar(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    play(stream)
    assert "\x1b[3" in stream.getvalue()  # a colour
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "100/100 20k steps/s  eta 0:00:00  return 33.33" in text
    assert "saved [1]" in text


def test_no_color_is_honoured(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    play(stream)
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|38;[0-9;]*)m", stream.getvalue())


def test_a_dumb_terminal_gets_lines(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    play(stream)
    assert "\x1b" not in stream.getvalue()
    assert "update 40/100" in stream.getvalue()


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1234, "1.23k"), (1234567, "1.23M"), (2.5e9, "2.5G"), (-20000, "-20k")]
)
def test_compact(number: float, text: str) -> None:
    assert compact(number) == text
