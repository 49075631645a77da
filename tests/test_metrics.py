import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import metrics
from jaxagent.errors import DataError, ResourceError
from jaxagent.metrics import MetricsLog, mean_interval, proportion_interval, truncate_after


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Rows of updates 10, 20 and 30."""
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as writer:
        for update in (10, 20, 30):
            writer.append(update, {"loss": update / 7}, timing={"seconds": 1.5})
    return path


def updates(path: Path) -> list[int]:
    return [row["update"] for row in metrics.read(path)]


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    row = {"loss": jnp.float32(0.1), "lanes": np.array([1.0, math.nan, -math.inf]), "best": math.inf, "note": None, "ok": True}
    with MetricsLog(path) as writer:
        writer.append(1, row, timing={"seconds": 0.25})
        writer.sync()
        (read,) = metrics.read(path)  # before it is closed
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert math.isnan(read["lanes"].pop(1))
    assert read == {
        "update": 1,
        "loss": float(np.float32(0.1)),
        "lanes": [1.0, -math.inf],
        "best": math.inf,
        "note": None,
        "ok": True,
        "timing": {"seconds": 0.25},
    }


def test_a_log_is_continued(log: Path) -> None:
    with MetricsLog(log) as writer:
        writer.append(40, {}, timing={})
    assert updates(log) == [10, 20, 30, 40]


@pytest.mark.parametrize(("update", "left"), [(0, []), (10, [10]), (25, [10, 20]), (30, [10, 20, 30]), (99, [10, 20, 30])])
def test_rows_beyond_a_checkpoint_are_cut(log: Path, update: int, left: list[int], caplog) -> None:
    whole = log.read_bytes()
    truncate_after(log, update)
    assert updates(log) == left
    assert whole.startswith(log.read_bytes())
    assert not caplog.records


def test_a_torn_line_is_left_out_and_cut(log: Path, caplog) -> None:
    whole = log.read_bytes()
    start = whole.rindex(b'{"update"')
    for length in range(start + 1, len(whole)):
        log.write_bytes(whole[:length])
        assert updates(log) == [10, 20]
    truncate_after(log, 30)
    assert log.read_bytes() == whole[:start]
    assert not caplog.records


@pytest.mark.parametrize("line", [b"\0\0\0\n", b"[1]\n", b"{\n", b"\xff\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_line(log: Path, line: bytes, caplog) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + line + lines[1])
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: expected a JSON object"):
        metrics.read(log)
    truncate_after(log, 30)
    assert updates(log) == [10]
    assert "line 2 is damaged" in caplog.text


def test_a_row_without_its_update_is_damaged(log: Path, caplog) -> None:
    log.write_bytes(b'{"loss": 1}\n' + log.read_bytes())
    truncate_after(log, 30)
    assert log.read_bytes() == b""
    assert "line 1 is damaged" in caplog.text


def test_no_log(tmp_path: Path) -> None:
    truncate_after(tmp_path / "none", 3)
    assert not os.listdir(tmp_path)
    with pytest.raises(DataError, match="cannot read .*none: No such file"):
        metrics.read(tmp_path / "none")
    with pytest.raises(ResourceError, match="Is a directory"):
        MetricsLog(tmp_path)


def test_a_full_disk_is_a_resource_error(tmp_path: Path) -> None:
    """A process that may write 100 bytes a file: one row fits, the second is torn, and the log can be used again."""
    path = tmp_path / "metrics.jsonl"
    code = """
    import resource, sys
    from pathlib import Path
    from jaxagent.errors import ResourceError
    from jaxagent.metrics import MetricsLog

    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    with MetricsLog(Path(sys.argv[1])) as writer:
        writer.append(1, {}, timing={"seconds": 1})
        try:
            writer.append(2, {"text": "x" * 100}, timing={})
        except ResourceError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert f"cannot write {path}: File too large\nneeds 1" in result.stdout
    assert path.stat().st_size == 100
    truncate_after(path, 2)
    assert updates(path) == [1]


# ---- intervals


def test_mean_interval_in_numbers() -> None:
    """1, 2, 3, 4: mean 2.5, s = sqrt(5 / 3) = 1.29099, t(3, 0.975) = 3.18245, half-width 3.18245 * 1.29099 / 2 = 2.05426."""
    value, (low, high) = mean_interval([1, 2, 3, 4])
    assert value == 2.5
    assert low == pytest.approx(2.5 - 2.05426, abs=1e-5)
    assert high == pytest.approx(2.5 + 2.05426, abs=1e-5)


def test_mean_interval_at_the_edges() -> None:
    assert mean_interval([3.0]) == (3.0, (-math.inf, math.inf))
    assert mean_interval(np.full((2, 5), 3.0, np.float32)) == (3.0, (3.0, 3.0))
    assert all(map(math.isnan, mean_interval([1.0, math.nan]).interval))
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])


def test_mean_interval_covers_as_often_as_it_says() -> None:
    """2000 samples of 5: coverage 0.95, standard error 0.005. A normal quantile instead of Student's would cover 0.88."""
    samples = np.random.default_rng(0).normal(size=(2000, 5))
    covered = [low <= 0 <= high for _, (low, high) in map(mean_interval, samples)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_proportion_interval_in_numbers() -> None:
    """8 of 10, z^2 = 3.84146: 1 + z^2 / n = 1.384146, centre (0.8 + z^2 / 2n) / 1.384146 = 0.992073 / 1.384146 = 0.716740."""
    value, (low, high) = proportion_interval(8, 10)
    # half-width sqrt(z^2 * (p (1 - p) / n + z^2 / 4n^2)) / 1.384146
    half = math.sqrt(3.84146 * (0.016 + 0.00960365)) / 1.384146
    assert value == 0.8
    assert (low, high) == pytest.approx((0.716740 - half, 0.716740 + half), abs=1e-5)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_proportion_interval_at_the_edges() -> None:
    """All of n: from n / (n + z^2) to 1."""
    value, (low, high) = proportion_interval(100, 100)
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(100 / 103.84146)
    value, (low, high) = proportion_interval(0, 100)
    assert (value, low) == (0.0, 0.0)
    assert high == pytest.approx(3.84146 / 103.84146)
    for successes, trials in ((0, 0), (2, 1), (-1, 3)):
        with pytest.raises(ValueError, match="successes"):
            proportion_interval(successes, trials)


def test_more_confidence_is_a_wider_interval() -> None:
    for narrow, wide in (
        (mean_interval([1, 2, 4]), mean_interval([1, 2, 4], confidence=0.99)),
        (proportion_interval(3, 9), proportion_interval(3, 9, confidence=0.99)),
    ):
        assert wide.interval[0] < narrow.interval[0] < narrow.interval[1] < wide.interval[1]


def test_what_is_worth_drawing():
    """What was measured, in order; turns instead of steps, cut episodes only where there were some, nine at most."""

    def drawn(**measured: list[float]) -> list[str]:
        return metrics.worth_drawing({name: np.array(values) for name, values in measured.items()})

    nan = math.nan
    assert drawn(entropy=[1.0], length_mean=[nan, 4.0], success_rate=[nan, nan], lr=[0.1]) == ["length_mean", "entropy"]
    assert drawn(turns_mean=[nan], length_mean=[2.0]) == ["length_mean"]
    assert drawn(length_mean=[6.0], turns_mean=[3.0], unfinished_rate=[0.0, 0.0]) == ["turns_mean"]
    assert drawn(unfinished_rate=[0.0, 0.1]) == ["unfinished_rate"]
    assert drawn(**{name: [1.0] for name in metrics.CURVES}) == [name for name in metrics.CURVES if name != "length_mean"][:9]
    assert drawn() == []
