"""What there is: environments, learners, and this installation."""

import json
from dataclasses import dataclass
from typing import Any

from jaxagent.commands.common import show
from jaxagent.errors import JaxagentError


@dataclass(frozen=True)
class Envs:
    """List the environments. Those of gymnax are found by their ids as well.

    Attributes:
      json: Print one JSON array.
    """

    json: bool = False

    def run(self) -> None:
        from jaxagent.envs import registry

        rows: list[dict[str, Any]] = [
            {"name": name, "options": registry.option_defaults(name), "params": list(registry.param_schema(name))}
            for name in registry.names()
        ]
        rows += [{"name": name, "options": None, "params": None} for name in registry.GYMNAX_IDS]
        if self.json:
            print(json.dumps(rows))
            return
        for row in rows:
            native, defaults = row["options"] is not None, row["options"] or {}
            options = ", ".join(f"{name}={registry.written_option(default)}" for name, default in defaults.items())
            print(f"{row['name']:34} {options if native else '(gymnax)'}")


@dataclass(frozen=True)
class Learners:
    """List the learners and their fields.

    Attributes:
      json: Print one JSON array.
    """

    json: bool = False

    def run(self) -> None:
        from jaxagent import config, schema

        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "fields": [
                    {
                        "name": f"learner.{field_name}",
                        "type": schema.expected(setting.hint),
                        "default": None if setting.default is schema.REQUIRED else setting.default,
                        "traced": setting.traced,
                        "doc": setting.doc,
                    }
                    for field_name, setting in fields.items()
                ],
            }
            for name, fields in config.learner_schemas().items()
        ]
        if self.json:
            print(json.dumps(rows))
            return
        for row in rows:
            print(row["name"])
            for setting in row["fields"]:
                kind = "traced" if setting["traced"] else "static"
                print(
                    f"  {setting['name']:32} {setting['default']!s:10} {kind:7} {setting['type']:28} {setting['doc']}".rstrip()
                )


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices and the compilation cache, and what is known not to work with them.

    Attributes:
      json: Print one JSON object.
    """

    json: bool = False

    def run(self) -> None:
        from jaxagent import doctor

        found = doctor.examine()
        show(found, as_json=self.json, text=doctor.text)
        if found["problems"]:
            raise JaxagentError(f"{len(found['problems'])} problem(s) found")
