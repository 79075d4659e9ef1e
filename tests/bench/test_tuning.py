"""Launches that are tried and kept: files, the nearest size, and what a benchmark does with them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bench.tuning import Launch, Tuned, candidates, chosen, read_tuning, write_tuning
from collsyn.cuda.prepared import TRANSPORTS
from collsyn.errors import InputError

ENTRY = Tuned("GPU", "allreduce", 8, False, 1 << 20, Launch(256, 4, "kernel"), 14.1e-6)

ENTRIES = st.builds(
    Tuned,
    gpu=st.sampled_from(["A", "NVIDIA H200 (x: y)"]),
    collective=st.sampled_from(["allgather", "allreduce"]),
    num_ranks=st.integers(2, 9),
    loopback=st.booleans(),
    size_bytes=st.integers(1, 1 << 40),
    launch=st.builds(Launch, st.sampled_from([32, 512, 1024]), st.integers(1, 64), st.sampled_from(TRANSPORTS)),
    time_s=st.integers(1, 10**6).map(lambda us: us * 1e-6),
)


@given(st.lists(ENTRIES, max_size=6))
def test_files_hold_the_last_of_each(tmp_path_factory, entries) -> None:
    path = tmp_path_factory.mktemp("tuning") / "t.yaml"
    write_tuning(path, entries)
    assert {e.key: (e.launch, round(e.time_s * 1e9)) for e in read_tuning(path)} == {
        e.key: (e.launch, round(e.time_s * 1e9)) for e in entries
    }


def test_the_nearest_size_counts_up_to_a_factor() -> None:
    other = replace(ENTRY, size_bytes=1 << 24, launch=Launch(1024, 1, "engine"))
    known = [ENTRY, other]
    assert chosen(known, "GPU", "allreduce", 8, False, 1 << 19) == ENTRY.launch
    assert chosen(known, "GPU", "allreduce", 8, False, 1 << 23) == other.launch
    assert chosen(known, "GPU", "allreduce", 8, False, 1 << 27) == Launch()
    for wrong in (("other", "allreduce", 8, False), ("GPU", "allgather", 8, False), ("GPU", "allreduce", 8, True)):
        assert chosen(known, *wrong, 1 << 20) == Launch()


def test_the_usual_launch_is_tried_first_and_every_other_once() -> None:
    tried = candidates()
    assert tried[0] == Launch()
    assert len(set(tried)) == len(tried) == 17


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("threads: 33", r"t.yaml:tuned\[0\].threads: is 33; expected a multiple of 32"),
        ("threads: 2048", r"threads: is 2048; expected at most 1024"),
        ("transport: dma", r"transport: is 'dma'; expected one of kernel, specialised, engine"),
        ("colour: red", r"colour: is not a key that is known here"),
    ],
)
def test_mistakes_name_the_key(line: str, message: str, tmp_path: Path) -> None:
    write_tuning(tmp_path / "t.yaml", [ENTRY])
    text = (tmp_path / "t.yaml").read_text()
    key = line.partition(":")[0]
    old = next((part for part in text.strip(" -{}\n").split(", ") if part.strip().startswith(f"{key}:")), None)
    (tmp_path / "t.yaml").write_text(text.replace(old, line) if old else text.replace("}", f", {line}}}"))
    with pytest.raises(InputError, match=message):
        read_tuning(tmp_path / "t.yaml")
