"""Reading documents (YAML, JSON) field by field: every mistake is one line `file:key: what; what would be right`."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.files import read_bytes
from collsyn.model.arrays import Rows
from collsyn.units import parse_size

MAX_FILE_BYTES = 1 << 30
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1


class Fields:
    """A mapping of a document together with where it stands; keys are taken one by one and leftovers are mistakes."""

    def __init__(self, data: object, file: str, key: str = "") -> None:
        self.file, self.key = file, key
        if not isinstance(data, Mapping):
            self.fail("", f"is {_kind(data)}; expected a mapping of keys to values")
        self._data: dict[Any, Any] = dict(data)

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise InputError for a key of this mapping ('' for the mapping itself)."""
        where = ".".join(part for part in (self.key, key) if part)
        raise InputError(f"{self.file}:{where}: {what}" if where else f"{self.file}: {what}")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the file in front of the InputErrors of a block that makes something of what was read."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from None

    def raw(self, key: str, default: object = ...) -> Any:
        """Take a value as it stands; `...` as default makes the key mandatory."""
        if key in self._data:
            return self._data.pop(key)
        if default is ...:
            self.fail(key, "is missing")
        return default

    def text(self, key: str, default: object = ..., choices: Sequence[str] | None = None) -> str:
        """Take a string, optionally one of some choices."""
        value = self.raw(key, default)
        if not isinstance(value, str):
            self.fail(key, f"is {_kind(value)}; expected text")
        if choices is not None and value not in choices:
            self.fail(key, f"is {value!r}; expected one of {', '.join(choices)}")
        return value

    def flag(self, key: str, default: object = ...) -> bool:
        """Take a boolean."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"is {value!r}; expected true or false")
        return value

    def integer(self, key: str, default: object = ..., minimum: int | None = None, maximum: int | None = None) -> int:
        """Take a whole number within bounds."""
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"is {value!r}; expected a whole number")
        self._within(key, value, minimum, maximum)
        return value

    def number(
        self, key: str, default: object = ..., above: float | None = None, minimum: float | None = None
    ) -> float:
        """Take a finite number, optionally above (exclusive) or at least a bound."""
        given = self.raw(key, default)
        value = finite_number(given)
        if value is None:
            self.fail(key, f"is {given!r}; expected a finite number")
        if above is not None and value <= above:
            self.fail(key, f"is {given!r}; expected a number above {above:g}")
        self._within(key, value, minimum, None)
        return value

    def fraction(self, key: str, default: object = ...) -> Fraction:
        """Take a rational written as a number or as text like 1/3."""
        value = self.raw(key, default)
        # Bounded digits and exponents: Fraction("1e999999999") would fill the memory.
        shape = r"[-+]?\d{1,40}(/0*[1-9]\d{0,40}|(\.\d{0,40})?(e[-+]?\d{1,2})?)"
        if not re.fullmatch(shape, str(value), re.IGNORECASE | re.ASCII):
            self.fail(key, f"is {value!r}; expected a number or a fraction like 1/3")
        return Fraction(str(value))

    def size_bytes(self, key: str, default: object = ...) -> int:
        """Take a size like 16K."""
        value = self.raw(key, default)
        try:
            return parse_size(value)
        except InputError as error:
            self.fail(key, str(error))

    def items(self, key: str, default: object = ...) -> list[Any]:
        """Take a list."""
        value = self.raw(key, default)
        if not isinstance(value, list):
            self.fail(key, f"is {_kind(value)}; expected a list")
        return value

    def mapping(self, key: str, default: object = ...) -> dict[str, Any]:
        """Take a mapping as a plain dict."""
        value = self.raw(key, default)
        if not isinstance(value, dict):
            self.fail(key, f"is {_kind(value)}; expected a mapping")
        return value

    def inner(self, key: str, default: object = ...) -> "Fields":
        """Take a mapping as Fields of its own."""
        return Fields(self.mapping(key, default), self.file, f"{self.key}.{key}" if self.key else key)

    def each(self, key: str, default: object = ...) -> Iterator["Fields"]:
        """Take a list of mappings, each as Fields that know their place."""
        prefix = f"{self.key}.{key}" if self.key else key
        for index, entry in enumerate(self.items(key, default)):
            yield Fields(entry, self.file, f"{prefix}[{index}]")

    def integers(
        self, key: str, default: object = ..., minimum: int | None = None, maximum: int | None = None
    ) -> npt.NDArray[np.int64]:
        """Take a list of whole numbers as an array."""
        value = self.items(key, default)
        if any(isinstance(entry, bool) or not isinstance(entry, int) for entry in value):
            bad = next(entry for entry in value if isinstance(entry, bool) or not isinstance(entry, int))
            self.fail(key, f"holds {bad!r}; expected whole numbers")
        for entry in (min(value), max(value)) if value else ():
            self._within(
                key, entry, _MIN_INT64 if minimum is None else minimum, _MAX_INT64 if maximum is None else maximum
            )
        return np.array(value, dtype=np.int64)

    def numbers(self, key: str, default: object = ...) -> npt.NDArray[np.float64]:
        """Take a list of finite numbers as an array."""
        values = []
        for entry in self.items(key, default):
            value = finite_number(entry)
            if value is None:
                self.fail(key, f"holds {entry!r}; expected finite numbers")
            values.append(value)
        return np.array(values, dtype=np.float64)

    def routes(self, key: str, default: object = ...) -> Rows:
        """Take a list of lists of link numbers as rows; which links there are is for the caller to check."""
        rows = self.items(key, default)
        if not all(isinstance(row, list) and all(type(entry) is int for entry in row) for row in rows):
            self.fail(key, "expected a list of lists of link numbers")
        limits = np.iinfo(np.int32)
        for entry in (bound(row) for row in rows if row for bound in (min, max)):
            self._within(key, entry, int(limits.min), int(limits.max))
        return Rows.of(rows)

    def peek(self, key: str) -> Any:
        """A value as it stands, left to be taken; None where the key is not there."""
        return self._data.get(key)

    def has(self, key: str) -> bool:
        """Whether the key is there and not yet taken."""
        return key in self._data

    def names(self) -> list[str]:
        """Names of the keys not yet taken, where they are the writer's choice; all must be text."""
        for key in self._data:
            if not isinstance(key, str):
                self.fail(str(key), "is a key that is no text")
        return list(self._data)

    def done(self) -> None:
        """Fail on keys that nobody took: a misspelt key must not be ignored."""
        for key in self._data:
            self.fail(str(key), "is not a key that is known here")

    def _within(self, key: str, value: float, minimum: float | None, maximum: float | None) -> None:
        if minimum is not None and value < minimum:
            self.fail(key, f"is {value!r}; expected at least {minimum}")
        if maximum is not None and value > maximum:
            self.fail(key, f"is {value!r}; expected at most {maximum}")


def finite_number(value: object) -> float | None:
    """The float of a document's number, or None; 1e-6 is one, although YAML 1.1 reads it as text."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value, re.IGNORECASE | re.ASCII):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def load_document(path: str | Path) -> Fields:
    """Fields of a YAML or JSON file (JSON is told by its first character); syntax errors name file and line."""
    content = read_bytes(path)
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
    return parse_document(content, str(path))


def parse_document(content: bytes, file: str) -> Fields:
    """Fields of a document that was already read; `file` is only used in messages."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not a text file (byte {error.start} is not UTF-8)") from None
    if text.lstrip()[:1] == "{":
        return Fields(_parse_json(text, file), file)
    return Fields(_parse_yaml(text, file), file)


def _parse_json(text: str, file: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _distinct(pairs, file))
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:line {error.lineno}: is not valid JSON ({error.msg}); is the file cut off?") from None
    except ValueError:
        raise InputError(f"{file}: holds a number of thousands of digits") from None
    except RecursionError:
        raise InputError(f"{file}: is nested too deeply") from None


def _distinct(pairs: list[tuple[Any, Any]], file: str) -> dict[Any, Any]:
    """A mapping of pairs whose keys differ: of two equal keys a reader would silently drop one."""
    mapping: dict[Any, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise InputError(f"{file}:{key}: stands twice in one mapping; expected each key once")
        mapping[key] = value
    return mapping


def _parse_yaml(text: str, file: str) -> object:
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class loader(base):  # type: ignore[misc, valid-type]  # noqa: N801
        """Reads mappings of distinct keys only."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            _distinct([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)], file)
            return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=loader)):
            raise InputError(f"{file}: uses YAML aliases (*name), which are not read; write the value out")
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        hint = (
            "; indent with spaces, not tabs" if "\t" in text.splitlines()[min(line, len(text.splitlines())) - 1] else ""
        )
        raise InputError(f"{file}:line {line}: is not valid YAML ({error.problem or error.context}){hint}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{file}: is not valid YAML ({str(error).splitlines()[0]})") from None


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}
    return names.get(type(value), "a number")
