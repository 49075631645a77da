"""Plain values checked against the annotations of the function or dataclass that will take them."""

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np

REQUIRED = inspect.Parameter.empty
_MOST_NAMES = 6  # that are listed where one is unknown
UNSET = "none"  # text that stands for None, which TOML does not have
_LARGEST = float(np.finfo(np.float32).max)
_INTEGERS = range(-(2**31), 2**31)  # everything that is not a size in Python ends up in int32


class Field(NamedTuple):
    """One setting.

    Attributes:
      hint: its type annotation.
      default: its default, or `REQUIRED`.
      doc: one line.
      traced: whether a change of it compiles nothing anew.
    """

    hint: Any
    default: Any = REQUIRED
    doc: str = ""
    traced: bool = False


Schema = dict[str, Field]


def of_function(function: Callable[..., Any]) -> Schema:
    """The keyword-only arguments of a function."""
    hints, docs = get_type_hints(function), described(function, "Args")
    parameters = inspect.signature(function).parameters.values()
    return {p.name: Field(hints[p.name], p.default, docs.get(p.name, "")) for p in parameters if p.kind is p.KEYWORD_ONLY}


def of_dataclass(cls: type, *, without: Collection[str] = ()) -> Schema:
    """The fields of a dataclass. For a flax dataclass the leaves of the pytree are the traced ones."""
    hints, docs = get_type_hints(cls), described(cls, "Attributes")
    fields = [field for field in dataclasses.fields(cls) if field.name not in without]
    return {
        f.name: Field(hints[f.name], _default(f), docs.get(f.name, ""), f.metadata.get("pytree_node", True)) for f in fields
    }


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def described(documented: Any, section: str) -> dict[str, str]:
    """The names that a Google-style docstring describes in a section, each with its text on one line."""
    block = re.search(rf"^{section}:\n((?:[ \t]+.*\n?|\n)+)", inspect.getdoc(documented) or "", re.MULTILINE)
    entries = re.findall(r"^ {2,4}([\w, ]+):\s+((?:.+\n?)(?:^ {4,}.*\n?)*)", block[1] if block else "", re.MULTILINE)
    return {name.strip(): " ".join(text.split()) for names, text in entries for name in names.split(",")}


def problems(values: Mapping[str, Any], schema: Schema, path: str, how: str = "") -> list[str]:
    """What is wrong with `values`, one line each: unknown and missing names, and values of another type.

    `how` says how to list the known names, where they are many.
    """
    found = []
    for name, value in values.items():
        if name not in schema:
            found.append(f"{path}{shown_key(name)}: unknown key; {suggestion(name, schema, path, how)}")
        elif not accepts(value, schema[name].hint):
            found.append(f"{path}{name}: expected {expected(schema[name].hint)}, got {shown(value)}")
    for name, field in schema.items():
        if field.default is REQUIRED and name not in values:
            found.append(f"{path}{name}: missing; expected {expected(field.hint)}")
    return found


def checked_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those that a function has arguments for as TOML has them: lists, and Python's numbers.

    Raises:
      ValueError: a value of another type than its argument.
    """
    checked = dict(values)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if name not in values or hint is REQUIRED or isinstance(hint, str):
            continue
        value = _plain(values[name])
        if not accepts(value, hint):
            raise ValueError(f"{name}: expected {expected(hint)}, got {shown(value)}")
        checked[name] = None if is_unset(value, hint) else value
    return checked


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def completed(values: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """`values`, already checked, converted to their types and joined by the defaults, in the schema's order."""
    defaults = {name: field.default for name, field in schema.items() if field.default is not REQUIRED}
    given = {name: _converted(value, schema[name].hint) for name, value in values.items()}
    return {name: given.get(name, defaults.get(name)) for name in schema}


def suggestion(name: str, known: Collection[str], path: str = "", how: str = "") -> str:
    """`did you mean learner.lr?`, or where none is near the known names: if they are many a few, and `how` to list them."""
    near = get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {path}{near[0]}?"
    if len(known) <= _MOST_NAMES:
        return f"known: {', '.join(sorted(known))}" if known else "there is none here"
    few = ", ".join(sorted(known)[:_MOST_NAMES])
    return f"known: {few} and {len(known) - _MOST_NAMES} more{how and '; '}{how}"


def accepts(value: Any, hint: Any) -> bool:
    """Whether a value as TOML has it fits an annotation, where `none` stands for None. Numbers must be finite."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is types.NoneType:
        return value is None or bool(value == UNSET)
    if origin in (Union, types.UnionType):
        return any(accepts(value, arg) for arg in args)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if origin in _SEQUENCES:
        items = [args[0]] * len(value) if isinstance(value, list) and (len(args) == 1 or args[-1] is Ellipsis) else args
        return isinstance(value, list) and len(value) == len(items) and all(map(accepts, value, items))
    if origin in (dict, Mapping):
        return isinstance(value, dict)
    if hint in (float, jax.Array):
        return type(value) is float and abs(value) <= _LARGEST or type(value) is int and value in _INTEGERS
    if hint is int:
        return type(value) is int and value in _INTEGERS
    return type(value) is hint or hint is Any


def expected(hint: Any) -> str:
    """An annotation in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(arg) for arg in args))
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args)
    if origin in _SEQUENCES:
        many = len(args) == 1 or args[-1] is Ellipsis
        return f"a list, each {expected(args[0])}" if many else f"a list of {len(args)}, each {expected(args[0])}"
    return _WORDS.get(origin or hint, "a value")


_SEQUENCES = (list, tuple, Sequence)
_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    jax.Array: "a finite number",
    str: "text",
    types.NoneType: UNSET,
    list: "a list",
    dict: "a table",
    Mapping: "a table",
}


def _converted(value: Any, hint: Any) -> Any:
    """Integers as floats where only floats are meant, lists as tuples, which can be static under `jax.jit`, and None."""
    if isinstance(value, list):
        return tuple(_converted(item, Any) for item in value)
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(value) is int and int not in kinds and (float in kinds or jax.Array in kinds):
        return float(value)
    return None if is_unset(value, hint) else value


def is_unset(value: Any, hint: Any) -> bool:
    """Whether it is the text that stands for None: an annotation that has such a text takes it as that."""
    kinds = get_args(hint)
    return value == UNSET and types.NoneType in kinds and not any(accepts(value, k) for k in kinds if k is not types.NoneType)


def shown(value: Any) -> str:
    """A value on one short line."""
    if isinstance(value, dict):
        return "a table"
    if type(value) is int and value not in _INTEGERS:
        return "an integer beyond 32 bits"
    if type(value) is float and _LARGEST < abs(value) < math.inf:
        return f"{value:g}, beyond float32"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def written(value: Any) -> str:
    """A value as it can be given on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown_key(name: str) -> str:
    """A key as it is, or quoted and cut short where it is none that could be known."""
    return name if re.fullmatch(r"[\w./-]{1,40}", name) else shown(name)
