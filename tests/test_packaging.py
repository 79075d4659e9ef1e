"""What ships: packages, data, layers, and an installation that works far from the repository."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from collsyn import __version__
from collsyn.data import data_dir, data_file, data_names

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PYPROJECT["tool"]["setuptools"]["package-dir"]
PACKAGES = set(PYPROJECT["tool"]["setuptools"]["packages"])
# Built files and caches do not ship.
LEFT_OUT = re.compile(r"__pycache__|\.(pyc|so|nbi|nbc)$|/\.")


def shipped_files():
    """Every file of the packages' folders, as the path it must have in the wheel."""
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            name = f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
            if path.is_file() and not LEFT_OUT.search(name):
                yield name


def run(*command, **options):
    """Runs a command that must succeed, and returns what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_every_package_is_listed():
    found = {str(Path(name).parent).replace("/", ".") for name in shipped_files() if name.endswith(".py")}
    assert found | {"collsyn.profiles", "collsyn.configs"} == PACKAGES


def test_every_package_has_an_init_except_the_folders_of_data():
    inits = {
        name.removesuffix("/__init__.py").replace("/", ".") for name in shipped_files() if name.endswith("/__init__.py")
    }
    assert PACKAGES - inits == {"collsyn.profiles", "collsyn.configs"}


def test_every_data_file_is_covered_by_a_pattern():
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    covered = set()
    for package, patterns in data.items():
        prefix = package.replace(".", "/")
        folder = ROOT / FOLDERS.get(package, prefix)
        for pattern in patterns:
            covered |= {f"{prefix}/{path.relative_to(folder).as_posix()}" for path in folder.glob(pattern)}
    assert {name for name in shipped_files() if not name.endswith(".py")} <= covered


def test_every_package_has_its_layer():
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    named = set(re.findall(r"[\w.]+", " ".join(layers)))
    tops = {
        "collsyn." + path.name.removesuffix(".py")
        for path in (ROOT / "collsyn").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert tops - {"collsyn.__init__"} <= named


def test_the_version_is_said_once_and_read_without_importing_anything():
    assert "version" not in PYPROJECT["project"]
    assignments = [
        node.value.value
        for node in ast.parse((ROOT / "collsyn/__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__version__"
    ]
    assert assignments == [__version__]


def test_bundled_data_is_found_by_name():
    for kind in ("profiles", "configs"):
        assert data_dir(kind) == ROOT / kind
        for name in data_names(kind):
            assert data_file(kind, name) == ROOT / kind / f"{name}.yaml"
    assert data_file("profiles", "no-such-machine") is None
    for name in data_names("profiles"):
        assert data_file("configs", f"../profiles/{name}") is None
        assert data_file("configs", str(ROOT / "profiles" / name)) is None


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Folder with the sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.mark.slow
def test_the_wheel_holds_all_packages_and_data_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"collsyn-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"collsyn-{__version__}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == set(shipped_files())
    assert f"{info}licenses/LICENSE" in names


@pytest.mark.slow
def test_the_sdist_holds_what_a_developer_needs(dist):
    (sdist,) = dist.glob("*.tar.gz")
    top = f"collsyn-{__version__}/"
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(top) for name in archive.getnames()}
    tracked = run("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    assert set(tracked) - {".gitignore"} <= names
    assert {"Makefile", "LICENSE", "tests/conftest.py", "scripts/demo.sh", ".ci/run"} <= names


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_venv_from_an_empty_directory(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    venv, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", wheel)
    collsyn = venv / "bin/collsyn"
    assert "synthesize" in run(collsyn, "--help", cwd=empty, env=environment)
    assert run(collsyn, "--version", cwd=empty, env=environment) == f"collsyn {__version__}\n"
    script = "from collsyn.data import *; print(data_dir('profiles'), data_names('profiles'))"
    folder, names = run(venv / "bin/python", "-c", script, cwd=empty, env=environment).split(" ", 1)
    assert Path(folder).is_relative_to(venv)
    assert ast.literal_eval(names) == data_names("profiles")
    assert not list(empty.iterdir())
