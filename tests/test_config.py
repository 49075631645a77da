"""Reading, refusing, completing and building configs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxagent import config
from jaxagent.config import parse, read, resolved_toml
from jaxagent.errors import ConfigError
from jaxagent.learners import LEARNERS

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("[!s]*.toml"))  # those of sweeps are in test_sweep_spec

BASE = """
seed = 3
[env]
name = "Collector-v0"
[env.params]
goal_reward = 2
[learner]
name = "ppo"
lr = 1e-3
num_epochs = 2
num_minibatches = 2
[network]
hidden = [8]
[train]
num_envs = 4
num_steps = 8
num_updates = 3
"""


def edited(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


# what is written in the file, and what the message must say
MALFORMED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "empty"),
    "only comments": ("# nothing\n\n", "empty"),
    "no equals sign": ("seed", "not valid TOML"),
    "unclosed string": ('[env]\nname = "Coll', "not valid TOML"),
    "unclosed table": ("[env\nname = 1", "not valid TOML"),
    "yaml": ("env:\n  name: Collector-v0\n", "not valid TOML"),
    "json": ('{"env": {"name": "Collector-v0"}}', "not valid TOML"),
    "python": ('__import__("os").system("touch canary")', "not valid TOML"),
    "yaml tag": ("a: !!python/object/apply:os.system ['touch canary']", "not valid TOML"),
    "binary": (bytes(range(256)), "byte 0x80"),
    "zeros": (b"\0" * 100, "not valid TOML"),
    "latin-1": ('[env]\nname = "Köln"'.encode("latin-1"), "byte 0xf6"),
    "utf-16": (BASE.encode("utf-16"), "UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf" + BASE.encode(), "not valid TOML"),
    "huge": ("# " + "x" * 1_000_000, "at most 65536 bytes"),
    "deep": ("x = " + "[" * 30_000, "not valid TOML"),
    "long number": ("seed = " + "9" * 5000, "not valid TOML"),
    "duplicate key": (edited("lr = 1e-3", "lr = 1e-3\nlr = 1e-4"), "not valid TOML: Cannot overwrite a value"),
    "duplicate table": (BASE + "[env]\nname = 'Collector-v0'", "not valid TOML: Cannot declare"),
    "table as array": (edited("[network]", "[[network]]"), "network: expected a table, got"),
    "unknown top key": ("sed = 4\n" + BASE, "sed: unknown key; did you mean seed?"),
    "unknown table": (BASE + "[lerner]\nx = 1", "lerner: unknown key; did you mean learner?"),
    "quoted key": ('"a\\nb" = 4\n' + BASE, "'a\\nb': unknown key"),
    "long key": (f"{'k' * 500} = 4\n" + BASE, "unknown key"),
    "no env": ('[learner]\nname = "ppo"\n[train]\nnum_updates = 1', "env: missing; expected a table"),
    "no learner name": (edited('name = "ppo"', ""), "learner.name: missing"),
    "env name is a number": (edited('"Collector-v0"', "3"), "env.name: expected text, got 3"),
    "misspelt env": (edited("Collector-v0", "Colector-v0"), "env.name: expected the name of an environment, got 'Colector-v0'"),
    "misspelt gymnax env": (edited("Collector-v0", "CartPoole-v1"), "did you mean CartPole-v1?"),
    "env is a path": (edited("Collector-v0", "../../etc/passwd"), "env.name: expected the name of an environment"),
    "misspelt learner": (edited('"ppo"', '"pop"'), "learner.name: unknown learner 'pop'; did you mean ppo?"),
    "unknown option": (edited('"Collector-v0"', '"Collector-v0"\nsize = 8'), "env.size: unknown key"),
    "wrong option type": (edited('"Collector-v0"', '"Collector-v0"\nobs = 8'), "env.obs: expected text, got 8"),
    "wrong option value": (edited('"Collector-v0"', '"Collector-v0"\nobs = "pakced"'), "env.obs: expected one of packed"),
    "misspelt param": (edited("goal_reward", "gaol_reward"), "did you mean env.params.goal_reward?"),
    "param is text": (edited("goal_reward = 2", 'goal_reward = "2"'), "env.params.goal_reward: expected"),
    "param is a list": (edited("goal_reward = 2", "goal_reward = [2]"), "env.params.goal_reward: expected a finite number"),
    "param is not whole": (edited("goal_reward = 2", "max_steps = 2.5"), "env.params.max_steps: expected an integer, got 2.5"),
    "params are a number": (edited("[env.params]\ngoal_reward", "params"), "env.params: expected a table, got 2"),
    "misspelt field": (edited("lr =", "lrr ="), "learner.lrr: unknown key; did you mean learner.lr?"),
    "network in learner": (edited("lr =", "network = 3\nlr ="), "learner.network: unknown key"),
    "number as text": (edited("1e-3", '"fast"'), "learner.lr: expected a finite number, got 'fast'"),
    "nan": (edited("1e-3", "nan"), "learner.lr: expected a finite number, got nan"),
    "infinity": (edited("1e-3", "-inf"), "learner.lr: expected a finite number, got -inf"),
    "date": (edited("1e-3", "2020-01-01"), "learner.lr: expected a finite number, got datetime.date"),
    "negative rate": (edited("1e-3", "-1.0"), "learner.lr: expected"),
    "boolean for a number": (
        edited("num_epochs = 2", "num_epochs = true"),
        "learner.num_epochs: expected an integer, got True",
    ),
    "fraction for an integer": (
        edited("num_epochs = 2", "num_epochs = 2.0"),
        "learner.num_epochs: expected an integer, got 2.0",
    ),
    "zero epochs": (edited("num_epochs = 2", "num_epochs = 0"), "learner.num_epochs: expected"),
    "indivisible": (edited("num_minibatches = 2", "num_minibatches = 5"), "learner.num_minibatches: "),
    "text for a list": (edited("[8]", '"8"'), "network.hidden: expected a list, each an integer, got '8'"),
    "mixed list": (edited("[8]", "[8, 'a']"), "network.hidden: expected a list, each an integer"),
    "negative width": (edited("[8]", "[-8]"), "network.hidden: expected positive integers"),
    "unknown torso": (
        edited("[8]", "[8]\ntorso = 'rnn'"),
        "network.torso: expected one of auto, mlp, cnn, bag, transformer, got 'rnn'",
    ),
    "misspelt activation": (edited("[8]", "[8]\nactivation = 'rlu'"), "network.activation: expected one of"),
    "negative envs": (edited("num_envs = 4", "num_envs = -4"), "train.num_envs: expected at least 1, got -4"),
    "no steps": (edited("num_steps = 8", "num_steps = 0"), "train.num_steps: expected at least 1, got 0"),
    "beyond 32 bits": (
        edited("num_envs = 4", "num_envs = 99999999999"),
        "train.num_envs: expected an integer, got an integer beyond",
    ),
    "no length": (edited("num_updates = 3", ""), "exactly one of num_updates and total_steps"),
    "two lengths": (
        edited("num_updates = 3", "num_updates = 3\ntotal_steps = 9"),
        "exactly one of num_updates and total_steps",
    ),
    "endless": (edited("num_updates = 3", "total_steps = inf"), "train.total_steps: expected a finite number, got inf"),
    "nearly endless": (
        edited("num_updates = 3", "total_steps = 1e300"),
        "train.total_steps: expected a finite number, got 1e+300, beyond float32",
    ),
    "unknown reset mode": (edited("num_envs = 4", "reset_mode = 'never'"), "train.reset_mode: expected one of same_step"),
    "negative seed": (edited("seed = 3", "seed = -3"), "seed: expected at least 0, got -3"),
    "no seeds": ("num_seeds = 0\n" + BASE, "num_seeds: expected at least 1, got 0"),
    "text for a seed": (edited("seed = 3", "seed = '3'"), "seed: expected an integer, got '3'"),
}


def built(path: Path) -> None:
    config.build(read(path))


def check_message(error: ConfigError, start: str) -> None:
    lines = str(error).splitlines()
    assert 1 <= len(lines) <= 5
    assert all(line.startswith(start) and len(line) < 400 for line in lines)


@pytest.mark.fast
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_configs_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, expected = MALFORMED[name]
    path = Path("run.toml")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        built(path)
    check_message(caught.value, "run.toml: ")
    assert expected in str(caught.value)
    assert [found.name for found in tmp_path.iterdir()] == ["run.toml"]  # nothing was executed, nothing written


@pytest.mark.fast
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    for path, found in ((tmp_path, "a directory"), (tmp_path / "none.toml", "nothing"), (Path("/dev/zero"), "no regular file")):
        with pytest.raises(ConfigError, match=f"expected a TOML file, found {found}"):
            read(path)
    with pytest.raises(ConfigError):
        read(loop)


@pytest.mark.fast
def test_problems_are_told_together_and_briefly() -> None:
    text = edited("[train]", "a = 1\nb = 1\n[train]\nc = 1\nd = 1\ne = 1\nf = 1")
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(text), "run.toml")
    check_message(caught.value, "run.toml: ")
    assert "network.a" in str(caught.value) and "train.c" in str(caught.value) and "and 2 more" in str(caught.value)


# what a slip of the hand makes of a value
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-2, 70), st.text(max_size=3), st.floats()), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
PATHS = [
    (table, name)
    for table, values in tomllib.loads(BASE).items()
    for name in (*(values if isinstance(values, dict) else ()), None, "new")
]


@pytest.mark.fast
@hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
@hypothesis.given(path=st.sampled_from(PATHS), value=VALUES)
def test_mutated_configs_are_read_or_refused(path: tuple[str, str | None], value: object) -> None:
    table, name = path
    document = tomllib.loads(BASE)
    holder, key = (document, table) if name is None or not isinstance(document[table], dict) else (document[table], name)
    holder.pop(key, None)
    if value is not None:
        holder[key] = value
    try:
        settings = parse(document, "run.toml")
    except ConfigError as error:
        check_message(error, "run.toml: ")
    else:
        assert parse(tomllib.loads(resolved_toml(settings)), "again.toml") == settings


@pytest.mark.fast
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
@hypothesis.given(position=st.integers(0, len(BASE)), junk=st.binary(max_size=4), drop=st.integers(0, 4))
def test_damaged_files_are_read_or_refused(
    position: int, junk: bytes, drop: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    path.write_bytes(BASE.encode()[:position] + junk + BASE.encode()[position + drop :])
    try:
        read(path)
    except ConfigError as error:
        check_message(error, str(path))


@pytest.mark.fast
def test_defaults_are_filled_in() -> None:
    settings = parse(tomllib.loads(BASE), "run.toml")
    assert settings.seed == 3
    assert settings.env.options["obs"] == "packed"
    assert settings.learner.fields.keys() | {"network", "axes"} == {name for name in LEARNERS["ppo"].__dataclass_fields__}
    assert settings.network["hidden"] == (8,)  # static under jit, so hashable
    assert settings.schedule.num_updates == 3
    assert settings.rollout.levels == "pool"


@pytest.mark.fast
@pytest.mark.parametrize(("steps", "updates"), [("1", 1), ("32", 1), ("33", 2), ("1e3", 32)])  # an update is 4 x 8 = 32 steps
def test_total_steps_become_updates(steps: str, updates: int) -> None:
    text = edited("num_updates = 3", f"total_steps = {steps}")
    assert parse(tomllib.loads(text), "run.toml").schedule.num_updates == updates


@pytest.mark.fast
def test_integers_where_fractions_are_meant() -> None:
    rate = parse(tomllib.loads(edited("1e-3", "1")), "run.toml").learner.fields["lr"]
    assert rate == 1.0 and isinstance(rate, float)


@pytest.mark.fast
def test_text_survives_being_written(tmp_path: Path) -> None:
    text = 'a "quoted" \\ path\twith\nlines, \x7f, \x01, é and 🙂'
    path = tmp_path / "run.toml"
    path.write_text(BASE)
    settings = read(path, {"init_from": text})
    again = tmp_path / "again.toml"
    again.write_text(resolved_toml(settings))
    assert read(again) == settings
    assert read(again).init_from == text


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(BASE)
    return path


@pytest.mark.fast
def test_overrides(base: Path) -> None:
    overrides = {
        "learner.lr": "5e-4",
        "network.hidden": "[4, 4]",
        "env.name": "CollectorRandom-v0",
        "env.params.max_steps": "9",
    }
    settings = read(base, overrides)
    assert settings.learner.fields["lr"] == 5e-4
    assert settings.network["hidden"] == (4, 4)
    assert settings.env.name == "CollectorRandom-v0"
    assert settings.env.params == {"goal_reward": 2, "max_steps": 9}
    assert read(base, {"train.total_steps": "64"}).schedule.num_updates == 2  # instead of the file's num_updates


@pytest.mark.fast
@pytest.mark.parametrize("text", ["8,4", "8, 4", "[8,4]", "[8, 4]", "8,4,"])
def test_lists_of_numbers_by_override(base: Path, text: str) -> None:
    assert read(base, {"network.hidden": text}).network["hidden"] == (8, 4)


@pytest.mark.fast
@pytest.mark.parametrize("text", ["8,,4", "[8", "8]", "[8,4", "[[8,4]", ",8"])
def test_lists_that_are_none(base: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="network.hidden: expected a list"):
        read(base, {"network.hidden": text})


@pytest.mark.fast
@pytest.mark.parametrize("form", ["{},{}", "{}, {}", "[{},{}]", '["{}", "{}"]', "['{}', '{}']", '"{}","{}"'])
def test_lists_of_names_by_override(base: Path, form: str) -> None:
    levels = ("BabyAI-GoToLocal-v0", "BabyAI-Open-v0")
    overrides = {"env.name": "BabyAI-Mix", "env.params": "{}", "env.levels": form.format(*levels)}
    assert read(base, overrides).env.options["levels"] == levels
    assert read(base, overrides | {"env.levels": f"[{levels[1]}]"}).env.options["levels"] == levels[1:]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"env.levels": "BabyAI-Opn-v0,BabyAI-GoTo-v0"}, "env.levels: expected BabyAI levels, got 'BabyAI-Opn-v0'"),
        (
            {"env.levels": "[BabyAI-Open-v0]", "env.weights": "[0]"},
            "env.weights: expected a list of 1, each from 0 to 1e+30, one of them 1e-30 or more, got [0]",
        ),
        ({"env.levels": "BabyAI-Open-v0"}, "env.levels: expected a list, each text, got 'BabyAI-Open-v0'"),
    ],
)
def test_a_wrong_mixture(base: Path, overrides: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.build(read(base, {"env.name": "BabyAI-Mix", "env.params": "{}", **overrides}))
    assert expected in str(caught.value)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"learner.lrr": "1"}, "--learner.lrr: learner.lrr: unknown key; did you mean learner.lr?"),
        ({"learner.lr": "1\nseed = 5"}, "learner.lr: expected a finite number"),
        ({"seed.x": "1"}, "seed is a value"),
        (
            {"env": "{name = 'ToolSelect-v0', params = {step_weight = nan}}"},
            "env.params.step_weight: expected a finite number, got nan",
        ),
        ({"learner.lr": "1e39"}, "learner.lr: expected a finite number, got 1e+39, beyond float32"),
        ({"learner.lr": "none"}, "learner.lr: expected a finite number, got 'none'"),
        ({"learner.lr": "x", "seed": "1", "num_seeds": "2"}, "toml with 3 options: learner.lr: expected"),
        ({"train.num_updates": "1", "train.total_steps": "1"}, "exactly one of"),
    ],
)
def test_wrong_overrides(base: Path, overrides: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match="."):
        read(base, overrides)
    try:
        read(base, overrides)
    except ConfigError as error:
        assert expected in str(error)


@pytest.mark.fast
def test_what_is_on_by_default_can_be_unset(base: Path) -> None:
    """And stays so in the file that is written of it."""
    grpo = {"learner": "{name = 'grpo'}", "network.critic": "false"}
    read_back = read(base, grpo | {"learner.dual_clip": "none", "learner.kl_coef": "none", "learner.group_size": "4"})
    assert read_back.learner.fields["dual_clip"] is None and read_back.learner.fields["kl_coef"] is None
    written = config.resolved_toml(read_back)
    assert 'dual_clip = "none"' in written and "kl_coef" not in written
    assert config.parse(tomllib.loads(written), "x") == read_back


@pytest.mark.fast
def test_a_network_that_a_learner_cannot_take(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"--network.critic: network.critic: expected true"):
        config.build(read(base, {"network.critic": "false"}))


@pytest.mark.fast
def test_refusing_starts_no_backend(tmp_path: Path) -> None:
    for number, (content, _) in enumerate(MALFORMED.values()):
        (tmp_path / f"{number}.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    code = """
import sys
from pathlib import Path
from jax._src import xla_bridge
from jaxagent import config
from jaxagent.errors import ConfigError
for path in Path(sys.argv[1]).iterdir():
    try:
        config.build(config.read(path))
    except ConfigError:
        assert not xla_bridge.backends_are_initialized(), path.read_bytes()[-200:]
    else:
        raise SystemExit(path)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_what_is_built(base: Path) -> None:
    trainer, schedule = config.build(read(base))
    assert (trainer.num_envs, trainer.num_steps, schedule.num_updates) == (4, 8, 3)
    assert trainer.learner.lr == 1e-3
    np.testing.assert_equal(np.asarray(trainer.params.goal_reward), np.float32(2.0))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs(path: Path, tmp_path: Path) -> None:
    settings = read(path)
    trainer, schedule = config.build(settings)
    assert schedule.num_updates >= 1 and trainer.steps_per_update >= 1
    again = tmp_path / "resolved.toml"
    again.write_text(resolved_toml(settings))
    assert read(again) == settings


@pytest.mark.fast
def test_there_are_configs() -> None:
    wanted = {"collector", "collector_random", "doorkey_8x8", "doorkey_8x8_gru", "cartpole", "pendulum", "breakout"}
    assert {path.stem.removeprefix("ppo_") for path in CONFIGS} >= wanted
