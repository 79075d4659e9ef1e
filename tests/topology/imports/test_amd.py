"""Tables of rocm-smi and amd-smi: link types, hops and bandwidths, and what is lost of them."""

import pytest

from collsyn.errors import InputError
from collsyn.topology.imports import amd
from collsyn.topology.imports.text import paste
from tests.support.pastes import rocm

BUSES = ["0000:0c:00.0", "0000:22:00.0", "0001:38:00.0"]


def islands(word="XGMI", other="PCIE"):
    """Two islands of two GPUs."""
    return [[word if a // 2 == b // 2 else other for b in range(4)] for a in range(4)]


def shifted():
    """A table whose header lost its first name, and whose rows lost their last cell."""
    lines = rocm(islands()).replace("GPU0         GPU1", "GPU1", 1).split("\n")
    return "\n".join(
        line.rstrip().rsplit(" ", 1)[0] if line[:4] in ("GPU0", "GPU1", "GPU2", "GPU3") else line for line in lines
    )


def tables(*names, rates=None, cut=None):
    """amd-smi's tables of these names for three GPUs, all joined by xGMI."""
    words = {"LINK TYPE": "XGMI", "HOPS": "1", "WEIGHT": "15", "ACCESS": "ENABLED"}
    own = {"LINK TYPE": "SELF", "HOPS": "0", "WEIGHT": "0", "ACCESS": "ENABLED", "NUMA BW": "N/A"}
    text = "$ amd-smi topology\n"
    for name in names:
        text += f"{name} TABLE:\n             " + " ".join(BUSES) + "\n"
        for a, bus in enumerate(BUSES):
            row = [own[name] if a == b else words.get(name) or rates[a][b] for b in range(3)]
            text += bus + " " + " ".join(f"{word:<12}" for word in row) + "\n"
        text += "\n"
    return text[:cut]


def test_link_types_and_numa_nodes_of_rocm_smi():
    described = amd.read_rocm(paste(rocm(islands(), nodes=[0, 0, 1, 1]).encode(), "x"))
    assert dict(described.lanes) == {(0, 1): 1, (2, 3): 1}
    assert [gpu.place for gpu in described.gpus] == [0, 0, 1, 1]
    assert (described.family, len(described.places)) == ("xgmi", 2)


def test_pairs_at_more_than_one_hop_have_no_link():
    hops = [["2" if abs(a - b) == 2 else "1" for b in range(4)] for a in range(4)]
    described = amd.read_rocm(paste(rocm([["XGMI"] * 4] * 4, hops).encode(), "x"))
    assert dict(described.lanes) == {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}
    assert any("2 pairs" in warning for warning in described.warnings)


def test_bandwidths_of_amd_smi_count_where_all_are_there():
    same = [["40000-50000"] * 3] * 3
    described = amd.read_amd(paste(tables("LINK TYPE", "HOPS", "NUMA BW", rates=same).encode(), "x"))
    assert (described.lane_gb_s, dict(described.lanes)) == (50.0, {(0, 1): 1, (0, 2): 1, (1, 2): 1})
    other = [[f"1000-{1000 * (2 + a + b)}" for b in range(3)] for a in range(3)]
    described = amd.read_amd(paste(tables("LINK TYPE", "NUMA BW", rates=other).encode(), "x"))
    want = {(0, 1): 3.0, (0, 2): 4.0, (1, 2): 5.0}
    assert dict(described.directed_gb_s) == want | {(b, a): rate for (a, b), rate in want.items()}
    whole = tables("LINK TYPE", "NUMA BW", rates=same)
    lost = "\n".join(line for line in whole.split("\n") if not (line[:12] in BUSES[:2] and "50000" in line))
    described = amd.read_amd(paste(lost.encode(), "x"))
    assert described.lane_gb_s is None
    assert any("not" in warning for warning in described.warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (tables("ACCESS", "WEIGHT"), "lacks the table of link types"),
        (tables("LINK TYPE").replace("XGMI", "????"), "expected XGMI or PCIE"),
        (tables("LINK TYPE", cut=150), "nothing says how"),
        (rocm(islands()).replace("GPU0         GPU1", "GPU1", 1), "nothing says how"),
        (shifted(), "row GPU0, column GPU1 is '0'; expected XGMI or PCIE"),
        (rocm(islands()).replace("GPU1", "GPU9"), "not GPU1"),
        (rocm(islands()).replace("XGMI", "PCIE", 1), "are said of how GPU0 and GPU1"),
    ],
)
def test_what_is_lost_is_refused(text, message):
    read = amd.read_amd if "amd-smi" in text else amd.read_rocm
    with pytest.raises(InputError, match=message):
        read(paste(text.encode(), "x.txt"))


def test_a_row_that_is_lost_is_told_by_the_columns():
    lines = [line for line in rocm(islands()).split("\n") if not line.startswith("GPU2")]
    described = amd.read_rocm(paste("\n".join(lines).encode(), "x"))
    assert (described.num_gpus, dict(described.lanes)) == (4, {(0, 1): 1, (2, 3): 1})
    assert any("GPU2" in warning for warning in described.warnings)
