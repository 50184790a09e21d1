"""Reads a TOML file into a msgspec type, and turns every fault into one line with file, key and nearest name."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

from fleet.problem import Problem, did_you_mean

T = TypeVar("T", bound=msgspec.Struct)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all tables of pins.toml and hosts.toml share: immutable, no key that we do not know."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises Problem when the file is missing, unreadable or not TOML.
    """
    try:
        return tomli.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise Problem(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path}: unreadable: {error}") from None
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise Problem(f"{path}: not TOML: {error}") from None


def convert(tables: dict[str, Any], kind: type[T], path: Path, prefix: str = "") -> T:
    """`tables` as `kind`; `prefix` is the key the tables were found under.

    Raises Problem naming the first unknown, missing or mistyped key.
    """
    try:
        return msgspec.convert(tables, kind, strict=True)
    except msgspec.ValidationError as error:
        raise Problem(_told(str(error), tables, kind, path, prefix)) from None


_MESSAGE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\]]*)\]")
_FIELD = re.compile(r"(unknown|missing required) field `(.*)`", re.DOTALL)


def _told(text: str, tables: dict[str, Any], kind: type[Any], path: Path, prefix: str) -> str:
    found = _MESSAGE.fullmatch(text)
    assert found is not None
    message, steps = found[1], _STEP.findall(found[2] or "")
    keys, inner = _followed(tables, kind, [name or index for name, index in steps])
    where = ".".join(filter(None, [prefix, *keys]))
    field = _FIELD.search(message)
    if field is None:
        return f"{path}: `{where}`: {message[0].lower()}{message[1:]}"
    where = f"{where}.{field[2]}" if where else field[2]
    if field[1] != "unknown":
        return f"{path}: missing key `{where}`"
    names = [each.encode_name for each in msgspec.structs.fields(inner)]
    return f"{path}: unknown key `{where}`" + did_you_mean(field[2], names)


def _followed(value: Any, kind: Any, steps: list[str]) -> tuple[list[str], Any]:
    """The keys that the steps of a msgspec path stand for, and the type at its end."""
    keys = []
    for step in steps:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == step)
            key: Any = step
        else:
            kind = kind.__args__[-1]
            # msgspec names a place in a list, but says only `...` for any key of a dict.
            key = int(step) if step.isdigit() else next(key for key in value if not _fits(value[key], kind))
        value = value[key]
        keys.append(str(key))
    return keys, kind


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        return False
    return True
