"""Models as MPS files: what a bug report about a solver needs."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collsyn.errors import InputError
from collsyn.files import digest

# Names a folder; read at every run, and inherited by worker processes.
VARIABLE = "COLLSYN_WRITE_MODELS"


def write_if_asked(highs: Any, name: str) -> None:
    """Write the model that a `highspy.Highs` holds into the folder of COLLSYN_WRITE_MODELS, where that is set."""
    folder = os.environ.get(VARIABLE)
    if folder:
        write_model(highs, name, Path(folder))


def use_folder(folder: Path | None) -> None:
    """Have this process and its children write their models there; None: where COLLSYN_WRITE_MODELS says, if anywhere.

    Raises InputError now, rather than from the first model, where the folder cannot be written.
    """
    if folder is not None:
        os.environ[VARIABLE] = str(folder.absolute())
    if os.environ.get(VARIABLE):
        named = Path(os.environ[VARIABLE])
        with _errors_of(named):
            named.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=named):
                pass


def write_model(highs: Any, name: str, folder: Path) -> Path:
    """Write the model as `folder/name-DIGEST.mps`, so that equal models are one file; raises InputError.

    Whole or not at all: it is written under another name first.
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", name)
    with _errors_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".model-", dir=folder) as scratch:
            whole = Path(scratch) / "model.mps"
            highs.writeModel(str(whole))
            content = whole.read_bytes()
            if not content.rstrip().endswith(b"ENDATA"):
                raise OSError("the solver could not write all of it")
            path = folder / f"{plain}-{digest(content)}.mps"
            os.replace(whole, path)
    return path


@contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: models cannot be written: {(error.strerror or str(error)).lower()}") from None
