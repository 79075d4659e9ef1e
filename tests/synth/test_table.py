"""The table of methods, the files and the rows of docs/synthesizers.md name the same things."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import collsyn.synth
from collsyn.errors import InputError
from collsyn.synth.table import METHODS, method

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(collsyn.synth.__file__).parent


def test_rows_of_the_page_are_the_table() -> None:
    page = (ROOT / "docs" / "synthesizers.md").read_text()
    rows = re.findall(r"^\| `([\w:-]+)` \| `(\w+\.py)` \|", page, re.MULTILINE)
    assert rows == [(name, f"{entry.split(':')[0].rsplit('.', 1)[1]}.py") for name, entry in METHODS.items()]


def test_every_synthesizer_in_the_folder_is_in_the_table() -> None:
    found = set()
    for file in FOLDER.glob("*.py"):
        if "kernels" in file.name:
            continue
        module = import_module(f"collsyn.synth.{file.stem}")
        for attribute, value in vars(module).items():
            if attribute.isupper() and hasattr(value, "accepts") and not isinstance(value, type):
                found.add((value.name, f"{module.__name__}:{attribute}"))
    assert found == set(METHODS.items())


@pytest.mark.parametrize("name", METHODS)
def test_names_agree(name: str) -> None:
    assert method(name).name == name
    assert method(name) is method(name)


def test_unknown_method() -> None:
    with pytest.raises(InputError, match=r"'rings' is not known; expected auto or one of ring, "):
        method("rings")
