"""Reads a TOML file into a msgspec type, and turns every fault into one line with file, key and nearest name."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

from fleet.problem import Problem, did_you_mean

T = TypeVar("T", bound=msgspec.Struct)


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
    except tomli.TOMLDecodeError as error:
        raise Problem(f"{path}: not TOML: {error}") from None


def convert(tables: dict[str, Any], kind: type[T], path: Path, prefix: str = "") -> T:
    """`tables` as `kind`; `prefix` is the key the tables were found under.

    Raises Problem naming the first unknown, missing or mistyped key.
    """
    try:
        return msgspec.convert(tables, kind, strict=True)
    except msgspec.ValidationError as error:
        raise Problem(_told(str(error), kind, path, prefix)) from None


def _told(text: str, kind: type[Any], path: Path, prefix: str) -> str:
    message, _, where = text.partition(" - at `$")
    keys = [part for part in re.split(r"[.\[\]]+", where.rstrip("`")) if part]
    unknown = re.search(r"unknown field `(.*?)`", message)
    if unknown:
        known = msgspec.structs.fields(_inner(kind, keys))
        names = [field.encode_name for field in known]
        where = ".".join(filter(None, [prefix, *keys, unknown.group(1)]))
        return f"{path}: unknown key `{where}`" + did_you_mean(unknown.group(1), names)
    missing = re.search(r"missing required field `(.*?)`", message)
    if missing:
        where = ".".join(filter(None, [prefix, *keys, missing.group(1)]))
        return f"{path}: missing key `{where}`"
    where = ".".join(filter(None, [prefix, *keys]))
    return f"{path}: `{where}`: {message[0].lower()}{message[1:]}"


def _inner(kind: type[Any], keys: list[str]) -> type[Any]:
    """The Struct type that the keys lead to; `...` is msgspec's word for any key of a dict."""
    for key in keys:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}[key]
        else:
            kind = kind.__args__[-1]
    return kind
