"""Damaged pastes: never a traceback, and never another number of GPUs, or other links, without a word of it."""

import random

import pytest

from collsyn.errors import InputError
from collsyn.model.profile import Profile
from collsyn.topology.imports.assemble import Options
from collsyn.topology.imports.baseline import Baseline
from collsyn.topology.imports.recognise import import_files
from tests.support import pastes

ESCAPES = ["\x1b[4m", "\x1b[0m", "\x1b[1;31m", "^[[4m", "\x1b]0;title\x07", "[0m"]
ROWS = [(1 << power, 20 + 2**power / 1e5) for power in range(10, 30, 3)]
INPUTS = {
    "cube mesh": pastes.tabs(pastes.cube_mesh()),
    "switch": pastes.spaces(pastes.switched(8, 12, 8)),
    "switch in Markdown": pastes.markdown(pastes.switched(4, 6, 2)),
    "pairs in a box": pastes.boxed(pastes.bridged()),
    "no NVLink": pastes.escapes(pastes.plain("SYS")),
    "old": pastes.windows(pastes.old()),
    "xml": pastes.topology_xml(4, pairs={(0, 1): 2, (1, 2): 1, (2, 3): 2, (0, 3): 1}),
    "xml switch": pastes.topology_xml(4, switch=18, kind='sm="90"'),
    "xml classes": pastes.topology_xml(4, elements=False),
    "rocm": pastes.rocm([["XGMI"] * 4] * 4, [["1"] * 4] * 4, [0, 0, 1, 1]),
    "p2p": pastes.p2p([[900.0 if a == b else 40.0 + a + b for b in range(4)] for a in range(4)], 3.0),
    "log": pastes.nccl_log(ROWS, 8, 1.75),
}


def drop_characters(rng, text):
    letters = list(text)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        del letters[rng.randrange(len(letters))]
    return "".join(letters)


def cut_lines(rng, text):
    lines = text.split("\n")
    start = rng.randrange(len(lines))
    del lines[start : start + rng.choice([1, 1, 2, 5])]
    return "\n".join(lines)


def remove_column(rng, text):
    number = rng.randrange(1, 10)
    rows = [line.split("\t") if "\t" in line else line.split() for line in text.split("\n")]
    return "\n".join("\t".join(cell for i, cell in enumerate(row) if i != number) for row in rows)


def truncate(rng, text):
    return text[: rng.randrange(len(text))]


def lose_the_beginning(rng, text):
    return text[rng.randrange(len(text)) :]


def narrow(rng, text):
    width = rng.randrange(20, 120)
    return "\n".join(line[:width] for line in text.split("\n"))


def double_a_line(rng, text):
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines)


def change_characters(rng, text):
    letters = list(text)
    for _ in range(rng.choice([1, 2, 8])):
        letters[rng.randrange(len(letters))] = chr(rng.randrange(1, 400))
    return "".join(letters)


def swell_numbers(rng, text):
    places = [at for at, letter in enumerate(text) if letter.isdigit()]
    at = rng.choice(places)
    return text[:at] + rng.choice(["0", "9" * 5, "9" * 30, "9" * 5000, "-1", "1e400"]) + text[at + 1 :]


def swap_tabs_and_spaces(rng, text):
    swapped = {"\t": lambda: " " * rng.randrange(1, 5), " ": lambda: "\t"}
    return "".join(swapped[c]() if c in swapped and rng.random() < 0.4 else c for c in text)


def put_in_escapes(rng, text):
    at = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(1, 20)))
    at = [place for place in at if "\x1b" not in text[max(0, place - 4) : place]]  # none inside another
    parts = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    return "".join(part + rng.choice(ESCAPES) for part in parts[:-1]) + parts[-1]


DAMAGES = [
    drop_characters,
    cut_lines,
    remove_column,
    truncate,
    lose_the_beginning,
    narrow,
    double_a_line,
    change_characters,
    swell_numbers,
]
# These change no word, so the answer must be the same.
HARMLESS = [swap_tabs_and_spaces, put_in_escapes]


def answer(text):
    """What is read: the kind and number of ranks (rows of a log), the warnings, and the result itself."""
    found = import_files((text.encode(), "paste"), (), Options())
    if isinstance(found, Baseline):
        return ("rows", len(found.rows)), set(found.warnings), found
    notes = found.facts if isinstance(found, Profile) else found.provenance
    return (type(found).__name__, found.num_ranks), set(notes.get("warnings", ())), found


def check(name, damage, seed):
    rng = random.Random(f"{name} {damage.__name__} {seed}")
    text = damage(rng, INPUTS[name])
    whole, before, _ = answer(INPUTS[name])
    try:
        found, after, _ = answer(text)
    except InputError as error:
        assert damage not in HARMLESS, error
        assert "\n" not in str(error)
        return
    if damage in HARMLESS:
        assert found == whole
    elif whole[0] != "rows":
        assert found == whole or after - before, (damage.__name__, seed, found)


@pytest.mark.parametrize("damage", DAMAGES + HARMLESS, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", INPUTS)
def test_damaged_pastes(name, damage):
    for seed in range(6):
        check(name, damage, seed)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES + HARMLESS, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", INPUTS)
def test_many_damaged_pastes(name, damage):
    for seed in range(1000, 1100):
        check(name, damage, seed)


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in ("log", "p2p", "xml classes")])
def test_every_line_that_is_lost_is_missed_or_was_of_no_use(name):
    whole, before, topology = answer(INPUTS[name])
    lines = INPUTS[name].split("\n")
    for number in range(len(lines)):
        try:
            found, after, other = answer("\n".join(lines[:number] + lines[number + 1 :]))
        except InputError:
            continue
        same = found == whole and sorted(other.bandwidth) == sorted(topology.bandwidth)
        assert same or after - before, lines[number]
