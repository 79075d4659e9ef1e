"""Compiling at first use: the cache, compilers that fail, and doing without one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collsyn.runtime.native_loader import native_library

ROOT = Path(__file__).resolve().parent.parent.parent
REPORT = "from collsyn.runtime.native_loader import native_library as n; print(n() is not None)"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler to try with"
)


def load(tmp_path, **environment):
    """Whether a new process gets the compiled executor, and what it says on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        cwd=ROOT,
        env={**os.environ, "COLLSYN_CACHE": str(tmp_path / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip() == "True", done.stderr


def compiler(tmp_path, body):
    """A compiler command made of shell lines."""
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


@needs_compiler
def test_it_is_compiled_once_and_says_so_only_if_asked(tmp_path):
    assert load(tmp_path) == (True, "")
    (library,) = (tmp_path / "cache").iterdir()
    made = library.stat().st_mtime_ns
    loaded, said = load(tmp_path, COLLSYN_DEBUG="1")
    assert loaded
    assert "compiled" not in said
    assert library.stat().st_mtime_ns == made
    library.unlink()
    assert "compiled" in load(tmp_path, COLLSYN_DEBUG="1")[1]


@needs_compiler
def test_another_compiler_has_another_library(tmp_path):
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    load(tmp_path)
    load(tmp_path, CC=f"{cc} -DSOMETHING")
    assert len(list((tmp_path / "cache").iterdir())) == 2


@needs_compiler
def test_a_compiler_without_native_code_is_asked_for_common_code(tmp_path):
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    picky = compiler(tmp_path, f'case "$*" in *-march=native*) echo "unknown flag" >&2; exit 1;; esac\nexec {cc} "$@"')
    assert load(tmp_path, CC=picky) == (True, "")


@needs_compiler
def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert load(tmp_path) == (True, "")


def test_a_compiler_that_fails_means_the_numpy_executor(tmp_path):
    broken = compiler(tmp_path, '[ "$1" = --version ] && { echo broken 1; exit 0; }\necho "no such header" >&2; exit 1')
    assert load(tmp_path, CC=broken) == (False, "")
    loaded, said = load(tmp_path, CC=broken, COLLSYN_DEBUG="1")
    assert not loaded
    assert "no such header" in said


def test_a_library_that_cannot_be_loaded_means_the_numpy_executor(tmp_path):
    body = '[ "$1" = --version ] && { echo odd 1; exit 0; }\nwhile [ "$1" != -o ]; do shift; done\necho junk > "$2"'
    assert load(tmp_path, CC=compiler(tmp_path, body)) == (False, "")


def test_no_compiler_means_the_numpy_executor(tmp_path):
    (tmp_path / "bin").mkdir()
    assert load(tmp_path, PATH=str(tmp_path / "bin"), CC="") == (False, "")
    assert load(tmp_path, CC="no-such-compiler") == (False, "")


def test_the_numpy_executor_can_be_forced(tmp_path):
    assert load(tmp_path, COLLSYN_NATIVE="0") == (False, "")
    assert not (tmp_path / "cache").exists()


def test_it_is_loaded_once_in_a_process():
    assert native_library() is native_library()
