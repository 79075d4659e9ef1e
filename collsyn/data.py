"""Finds the YAML files that ship with the package, installed or in a bare tree."""

from importlib.resources import files
from pathlib import Path

from collsyn.errors import CollsynError


def data_dir(kind: str) -> Path:
    """Folder of the bundled files of a kind, `profiles` or `configs`.

    Once installed it lies inside the package; in the repository (and so in an editable
    installation) beside it.
    """
    package = Path(str(files("collsyn")))
    for folder in (package / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise CollsynError(f"{package}: this installation lacks its folder {kind}; install it again")


def data_names(kind: str) -> list[str]:
    """Names of the bundled files of a kind, sorted: paths below its folder without `.yaml`."""
    folder = data_dir(kind)
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def data_file(kind: str, name: str) -> Path | None:
    """Path of the bundled file of that name, or None if there is none."""
    # Looked up among the names, so that a name such as ../x or /etc/x finds nothing.
    return data_dir(kind) / f"{name}.yaml" if name in data_names(kind) else None
