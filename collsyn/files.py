"""Reading and writing whole files: nothing half-written stays behind, and every failure names the file."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from collsyn.errors import InputError


def read_bytes(path: str | Path) -> bytes:
    """Content of a file; raises InputError with the file's name when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write through a temporary file in the same folder and rename it; raises InputError where that cannot be."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A stream whose content becomes the file at the end, by a rename, and not at all if that is not reached.

    Devices and pipes are written to as they stand. Raises InputError where the file cannot be written.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            with open(path, "wb") as stream:
                yield stream
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {_reason(error)}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def require_writable(path: str | Path) -> None:
    """Raise the InputError of `write_atomic` now rather than after long work; nothing stays behind."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: cannot be written: is a directory")
    if path.exists() and not path.is_file():
        return  # a device or pipe is written to as it stands
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {_reason(error)}") from None


def digest(text: str | bytes) -> str:
    """First 16 hex digits of the SHA-256: names the inputs in provenance."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
