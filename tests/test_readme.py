"""The README's Python runs as it stands, and so do its commands."""

import re
import shlex
from pathlib import Path

import pytest

from jaxagent import cli, commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_ten_lines_train_an_agent_to_collect_everything(capsys):
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12
    exec(BLOCKS[0], {})
    summary = capsys.readouterr().out
    assert "'success_rate': 1.0" in summary and "'length_mean': 11.0" in summary


def test_seven_learning_rates(capsys):
    exec(BLOCKS[1], {})
    assert "(7, 2)" in capsys.readouterr().out


def test_a_mixture_and_its_expert(capsys):
    exec(BLOCKS[2], {})
    mission, success_rate = capsys.readouterr().out.splitlines()
    assert mission.startswith(("go to ", "put ")) and float(success_rate) == 1.0


def test_a_trained_agent_elsewhere(tmp_path):
    config = tmp_path / "tiny.toml"
    train = "train = { num_updates = 1, num_envs = 4, num_steps = 8 }"
    config.write_text(f'env.name = "Collector-v0"\nlearner.name = "ppo"\n{train}\n')
    assert cli.main(["train", str(config), "--out", str(tmp_path / "NAME"), "--train.eval_episodes", "2"]) == 0
    exec(BLOCKS[3].replace("runs/NAME", str(tmp_path / "NAME")), {})


@pytest.mark.fast
def test_commands_are_known():
    blocks = README.split("```")[1::2]
    lines = [line for block in blocks if block.startswith("\n") for line in block.splitlines()]
    calls = [line.partition("#")[0].split("&&")[-1].strip() for line in lines]
    calls = [call for call in calls if call.startswith("jaxagent ")]
    assert len(calls) >= 5
    for call in calls:
        parsed = cli.parse(shlex.split(call)[1:])
        assert type(parsed) in commands.COMMANDS.values()
        for word in shlex.split(call):
            assert not word.endswith(".toml") or (ROOT / word).is_file()
