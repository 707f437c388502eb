"""Reading a `config.json` by a table of fields: every fault is kept, none stops the reading."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monodraft.errors import ConfigError, Fault

SECTIONS = (
    "text_config",
    "transformer_layer_config",
    "dflash_config",
    "dspark_config",
    "rope_parameters",
    "rope_scaling",
    "quantization_config",
)
"""Names that hold fields of their own: an object or null, wherever they stand."""

MOST_LAYERS = 256
"""More is a mistake: the public drafters have 2 to 6. A list entry a layer is made before any tensor is looked at."""

LONGEST_BLOCK = 256
"""More is a mistake: the public drafters have 3 to 15. No tensor's shape shows the block size."""

GREATEST_SIZE = 2**53
"""More is a mistake, and no number that a float holds."""

ROPE_SECTIONS = ("rope_parameters", "rope_scaling")
"""Where transformers keeps RoPE's facts that are not flat: since version 5, and before."""

ABSENT = object()
"""Value of a field that the config does not have; JSON null is None."""

Parser = Callable[[object], Any]
"""Turns a JSON value into ours; raises ValueError with what was wanted."""


def rope_paths(name: str, kind: str = "") -> tuple[str, ...]:
    """Where a fact of RoPE may stand: flat, and in ROPE_SECTIONS, there under the layer type `kind` if one is given."""
    return (name, *(f"{section}.{kind}{'.' if kind else ''}{name}" for section in ROPE_SECTIONS))


def show(value: object) -> str:
    """A JSON value as it stands in the file, shortened."""
    if value is ABSENT:
        return "nothing"
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def positive_int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= GREATEST_SIZE:
        raise ValueError(f"a positive integer, up to {GREATEST_SIZE}")
    return value


def at_most(limit: int) -> Parser:
    """A positive integer up to `limit`, for what is allocated by its value alone."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            raise ValueError(f"an integer from 1 to {limit}")
        return value

    return parse


def token_id(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a token id (an integer of at least 0)")
    return value


def positive_float(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise ValueError("a positive number")
    return float(value)


def fraction(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError("a number above 0, up to 1")
    return float(value)


def rope_base(value: object) -> float:
    """RoPE's theta. Below 1 the frequencies would rise with the dimension, and out of float32 in the end."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < 2.0**128:
        raise ValueError("a number of at least 1, within float32")
    return float(value)


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def layer_ids(value: object) -> tuple[int, ...]:
    wanted = "a list of strictly increasing layer numbers (-1 is the embedding output)"
    if not isinstance(value, list) or not value:
        raise ValueError(wanted)
    if any(not isinstance(v, int) or isinstance(v, bool) or v < -1 for v in value):
        raise ValueError(wanted)
    if any(a >= b for a, b in itertools.pairwise(value)):
        raise ValueError(wanted)
    return tuple(value)


def one_of(*choices: object) -> Parser:
    """Accepts exactly these JSON values."""

    def parse(value: object) -> object:
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise ValueError(" or ".join(show(choice) for choice in choices))
        return value

    return parse


def optional(parse: Parser) -> Parser:
    """Also accepts null, as None."""
    return lambda value: None if value is None else parse(value)


@dataclass(frozen=True)
class Field:
    """One fact of a config: our `name`, the dotted `paths` where vendors write it, how to `parse` it, and the `default`
    where every path is absent (ABSENT: it must be there)."""

    name: str
    paths: tuple[str, ...]
    parse: Parser
    default: Any = ABSENT


@dataclass(frozen=True)
class Check:
    """A relation between fields that have been read: `holds(*values)` or a fault at `path`."""

    names: tuple[str, ...]
    path: str
    holds: Callable[..., bool]
    wanted: str


@dataclass
class Reader:
    """Looks facts up in `raw`, the parsed JSON, under each of `roots` ("" is the top level, "text_config" a nested
    one). `place` names the file in faults, which gather in `faults`."""

    raw: Mapping[str, Any]
    place: str = "config.json"
    roots: tuple[str, ...] = ("",)
    faults: list[Fault] = field(default_factory=list)

    def at(self, path: str) -> Any:
        """The JSON value at a dotted path from the top, or ABSENT."""
        value: Any = self.raw
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return ABSENT
            value = value[key]
        return value

    def check_sections(self) -> None:
        """Raise ConfigError for each section that is neither an object nor null: its fields would be passed over."""
        inside = [f"{section}.{name}" for section in SECTIONS for name in SECTIONS]
        for path in (*SECTIONS, *inside):
            value = self.at(path)
            if value is not ABSENT and value is not None and not isinstance(value, Mapping):
                self.fault(path, value, "an object")
        self.finish()

    def spellings(self, paths: Sequence[str]) -> dict[str, Any]:
        """Full path to value of all places that hold one of `paths`."""
        full = [f"{root}.{path}" if root else path for root in self.roots for path in paths]
        return {path: value for path in full if (value := self.at(path)) is not ABSENT}

    def fault(self, path: str, found: object, wanted: str) -> None:
        """Note something wrong at `path`; `found` is a JSON value."""
        self.faults.append(Fault(f"{self.place}: {path}", show(found), wanted))

    def contradiction(self, first: str, second: str, wanted: str) -> None:
        """Note that two fields cannot both be right, naming both and their values."""
        self.faults.append(
            Fault(f"{self.place}: {first} and {second}", f"{show(self.at(first))} and {show(self.at(second))}", wanted)
        )

    def read(self, fact: Field) -> Any:
        """The parsed value of a field, or ABSENT after noting a fault."""
        found = self.spellings(fact.paths)
        parsed: dict[str, Any] = {}
        for path, value in found.items():
            try:
                parsed[path] = fact.parse(value)
            except ValueError as wanted:
                self.fault(path, value, str(wanted))
        if len(parsed) < len(found):
            return ABSENT
        if not found:
            if fact.default is ABSENT:
                self.fault(" or ".join(fact.paths), ABSENT, "this field")
            return fact.default
        (first, value), *others = parsed.items()
        for other, another in others:
            if another != value:
                self.contradiction(first, other, "the same value in both")
        return value

    def read_all(self, table: Sequence[Field]) -> dict[str, Any]:
        """Field name to value, without the ones that had faults."""
        values = {fact.name: self.read(fact) for fact in table}
        return {name: value for name, value in values.items() if value is not ABSENT}

    def check_all(self, values: Mapping[str, Any], checks: Sequence[Check]) -> None:
        """Note a fault for each relation that does not hold among the values that could be read."""
        for check in checks:
            if all(name in values for name in check.names) and not check.holds(*(values[n] for n in check.names)):
                self.fault(check.path, values[check.names[0]], check.wanted)

    def finish(self) -> None:
        """Raise ConfigError with all faults, if there are any."""
        if self.faults:
            raise ConfigError(f"{self.place} cannot be used", self.faults)
