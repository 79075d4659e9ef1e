"""Models as MPS files: what a bug report about a solver needs."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from collsyn.errors import InputError
from collsyn.files import digest, require_writable

# Names a folder; read at every run, and inherited by worker processes.
VARIABLE = "COLLSYN_WRITE_MODELS"


def write_if_asked(highs: Any, name: str) -> None:
    """Write the model that a `highspy.Highs` holds into the folder of COLLSYN_WRITE_MODELS, where that is set."""
    folder = os.environ.get(VARIABLE)
    if folder:
        write_model(highs, name, Path(folder))


def write_model(highs: Any, name: str, folder: Path) -> Path:
    """Write the model as `folder/name-DIGEST.mps`, so that equal models are one file; raises InputError.

    Whole or not at all: it is written under another name first.
    """
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", name)
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{plain}.", suffix=".mps", dir=folder)
        os.close(handle)
        highs.writeModel(temporary)
        content = Path(temporary).read_bytes()
        if not content.rstrip().endswith(b"ENDATA"):
            raise OSError("the solver could not write all of it")
        path = folder / f"{plain}-{digest(content)}.mps"
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
        return path
    except OSError as error:
        raise InputError(f"{folder}: models cannot be written: {(error.strerror or str(error)).lower()}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def use_folder(folder: Path) -> None:
    """From now on have this process and its children write their models there; raises InputError."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: models cannot be written: is not a directory")
    require_writable(folder / "model.mps")
    os.environ[VARIABLE] = str(folder.absolute())
