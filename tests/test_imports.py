"""What may import what, and what is not imported before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jaxagent

ROOT = Path(jaxagent.__file__).parent

# from the bottom up; a module may import those of lower rows only, and, inside a package, its neighbours
LAYERS = (
    {"types", "errors"},
    {"files"},
    {"leaves", "provenance", "progress", "schema", "distributed"},
    {"finite"},
    {"ops", "checkpoint", "metrics", "rundir", "statistics"},
    {"trackers"},
    {"envs", "render", "networks"},  # pictures are made of the symbols that envs define
    {"data", "rewards", "curriculum"},
    {"planners"},
    {"rollout", "learners", "interop"},
    {"sources", "evaluation"},
    {"train"},
    {"loop"},
    {"lanes", "config"},
    {"trained", "bench"},
    {"sweep"},
    {"report"},
    {"doctor"},
    {"commands"},
    {"cli"},
)
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
ALLOWED_SIBLINGS = {("envs", "render"), ("render", "envs")}
HEAVY = (
    "gymnax",
    "gymnasium",
    "minigrid",
    "orbax",
    "matplotlib",
    "PIL",
    "tyro",
    "pyarrow",
    "jinja2",
    "ray",
    "optuna",
    "submitit",
    "scipy.stats",
    "tensorboardX",
    "wandb",
)


def _unit(path: Path) -> str:
    """The module or package below `jaxagent` that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported_units(path: Path) -> set[str]:
    units = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "jaxagent":
            names = [f"jaxagent.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        else:
            continue
        units |= {name.split(".")[1] for name in names if name.startswith("jaxagent.")}
    return units


def _files() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT or path.stem not in ("__init__", "__main__")]


@pytest.mark.fast
def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {unit}"
        for path in _files()
        for unit in sorted(_imported_units(path) - {_unit(path)})
        if RANK[unit] >= RANK[_unit(path)] and (_unit(path), unit) not in ALLOWED_SIBLINGS
    ]
    assert not wrong


@pytest.mark.fast
def test_every_module_has_a_layer() -> None:
    assert {_unit(path) for path in _files()} <= RANK.keys()


@pytest.mark.fast
def test_learners_do_not_import_each_other() -> None:
    files = [path for path in (ROOT / "learners").glob("*.py") if path.stem not in ("__init__", "common")]
    for path in files:
        imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert not imported & {f"jaxagent.learners.{other.stem}" for other in files}, path


@pytest.mark.fast
@pytest.mark.parametrize("module", ["jaxagent", "jaxagent.bench"])
def test_imports_are_light(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.fast
def test_other_libraries_are_reached_without_an_import_by_name() -> None:
    code = (
        "import sys, jaxagent; assert 'jaxagent.interop' not in sys.modules;"
        "print(jaxagent.interop.farama.to_farama.__name__, jaxagent.interop.gymnax.to_gymnax.__name__);"
        f"assert not {set(HEAVY)!r} & sys.modules.keys();"
        "jaxagent.interop.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["to_farama", "to_gymnax"]
    assert "AttributeError: module 'jaxagent.interop' has no attribute 'nothing'" in done.stderr


@pytest.mark.fast
def test_all_names_of_the_package_exist() -> None:
    for name in jaxagent.__all__:
        assert getattr(jaxagent, name) is not None
