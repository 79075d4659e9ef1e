"""`nvidia-smi topo -m` in the forms in which it is pasted: what was written is what is read, or the loss is said."""

import pytest

from collsyn.errors import InputError
from collsyn.topology.imports import nvidia
from collsyn.topology.imports.pcie import LEVELS
from collsyn.topology.imports.text import paste
from tests.support import pastes

MACHINES = {
    "cube mesh": pastes.cube_mesh(),
    "switch": pastes.switched(8, 12, 4),
    "switch of 18": pastes.switched(8, 18, 8),
    "switch of 16 GPUs": pastes.switched(16, 6),
    "pairs": pastes.bridged(),
    "all SYS": pastes.plain("SYS"),
    "old driver": pastes.old(),
    "two GPUs": pastes.Matrix(2, {(0, 1): "NV4"}),
}


def read(text):
    return nvidia.read(paste(text.encode(), "matrix.txt"))


def level(described, a, b):
    """How near two devices are in the tree of places, as the words of a matrix say it."""
    places = [gpu.place for gpu in described.gpus] + [card.place for card in described.cards]
    up, down = described.path(places[a]), described.path(places[b])
    shared = next((place for place in up if place in down), None)
    if shared is None:
        return "SYS"
    kind = described.places[shared].name.rstrip("0123456789")
    return {"pcie": ("PIX", "PXB"), "host": ("PHB",), "socket": ("NODE", "PHB", "PXB", "PIX")}[kind]


@pytest.mark.parametrize("style", pastes.STYLES)
@pytest.mark.parametrize("name", MACHINES)
def test_what_a_matrix_says_is_read_in_every_form(name, style):
    matrix = MACHINES[name]
    described = read(pastes.STYLES[style](matrix))
    assert described.num_gpus == matrix.gpus
    assert [card.name for card in described.cards] == list(matrix.cards)
    want = matrix.lanes()
    through = {}
    for hub in described.hubs:
        through |= {(a, b): min(hub[a], hub[b]) for a in hub for b in hub if a < b}
    assert dict(described.lanes) | through == want
    assert not set(described.lanes) & set(through)
    # More lanes than a GPU has can only be those to a switch.
    degrees = [sum(count for pair, count in want.items() if gpu in pair) for gpu in range(matrix.gpus)]
    assert bool(described.hubs) == (max(degrees, default=0) > 18)
    assert all(described.lanes[pair] > 0 for pair in described.lanes)


@pytest.mark.parametrize("style", ["tabs", "windows", "markdown"])
@pytest.mark.parametrize("name", ["cube mesh", "switch", "old driver"])
def test_cards_and_gpus_hang_where_the_words_say(name, style):
    matrix = MACHINES[name]
    described = read(pastes.STYLES[style](matrix))
    for a in range(len(matrix.names)):
        for b in range(a + 1, len(matrix.names)):
            word = matrix.word(a, b).replace("SOC", "SYS")
            found = level(described, a, b)
            if word == "SYS":
                assert found == "SYS"
            elif word in LEVELS:
                assert word in found


def test_a_legend_names_the_cards():
    text = pastes.tabs(pastes.switched(4, 6, 2)) + "\nNIC Legend:\n\n  NIC0: rocep49s0\n  NIC1: mlx5_bond_0\n"
    assert [card.name for card in read(text).cards] == ["rocep49s0", "mlx5_bond_0"]


def test_rows_that_are_missing_are_told_by_the_others():
    lines = pastes.spaces(pastes.cube_mesh()).split("\n")
    described = read("\n".join(lines[:3] + lines[4:10]) + "\n")
    assert dict(described.lanes) == pastes.cube_mesh().lanes()
    assert any("GPU1" in warning and "missing" in warning for warning in described.warnings)


def test_a_lost_header_is_told_by_the_diagonal():
    lines = pastes.spaces(pastes.switched(8, 12, 3)).split("\n")
    described = read("\n".join(lines[4:]))
    assert (described.num_gpus, described.hubs) == (8, (dict.fromkeys(range(8), 12),))
    assert any("header" in warning for warning in described.warnings)
    assert any("GPU0-GPU1" in warning for warning in described.warnings)


def test_cells_that_ran_into_the_affinity_are_told_apart():
    text = (
        "        GPU0    GPU1    GPU2CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV12    NV120-31    0\n"
        "GPU1    NV12     X      NV120-31    0\n"
        "GPU2    NV12    NV12     X 32-63    1\n"
    )
    described = read(text)
    assert (described.hubs, described.warnings) == (({0: 12, 1: 12, 2: 12},), ())
    pair = "     GPU0 GPU1CPU Affinity\nGPU0  X  NV40-31\nGPU1 NV4  X\n"
    assert (dict(read(pair).lanes), read(pair).warnings) == ({(0, 1): 4}, ())


def test_a_switch_tells_what_a_cut_paste_does_not():
    text = pastes.spaces(pastes.switched(8, 12))
    described = read(text[: text.rindex("GPU2 ") + 20])
    assert described.hubs == (dict.fromkeys(range(8), 12),)
    assert any("same NVSwitch" in warning for warning in described.warnings)


def test_a_cut_word_is_not_believed():
    text = pastes.spaces(pastes.switched(2, 12))
    cut = text[: text.rindex("NV12") + 3]
    assert cut.endswith("NV1")
    assert dict(read(cut).lanes) == {(0, 1): 12}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("        GPU0    GPU1\n GPU0   X       CNS\n GPU1   CNS     X\n", "peer access"),
        ("     GPU0 GPU1 GPU2 CPU Affinity\nGPU0  X NV1 NV2\nGPU1 NV2 X NV2\nGPU2 NV2 NV2 X\n", "NV1.*NV2.*both ways"),
        ("     GPU0 GPU1 GPU3 CPU Affinity\nGPU0 X SYS SYS\nGPU1 SYS X SYS\nGPU3 SYS SYS X\n", "not GPU2"),
        ("     GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X SYS SYS\n", "GPU1 and GPU2"),
        ("     GPU0 GPU1 GPU1 CPU Affinity\nGPU0 X SYS SYS\nGPU1 SYS X SYS\n", "GPU1 twice"),
        ("     GPU0 GPU1 CPU Affinity\nGPU0 X SYS PHB 0-3\nGPU1 SYS X PHB 0-3\n", "neither a name nor a row"),
    ],
)
def test_what_cannot_be_known_is_refused_with_the_way_to_a_good_file(text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith("matrix.txt:line ")
    assert "nvidia-smi topo -m" in str(caught.value)


def test_a_matrix_of_peer_access_beside_the_other_is_no_topology():
    status = " \tGPU0\tGPU1\tGPU2\tGPU3\t\n" + "".join(
        f" GPU{a}\t" + "\t".join("X" if a == b else "CNS" if a + b == 3 else "OK" for b in range(4)) + "\t\n"
        for a in range(4)
    )
    described = read(pastes.tabs(pastes.bridged()) + "== p2p status\n" + status)
    assert dict(described.lanes) == pastes.bridged().lanes()
    assert any("peer access" in warning for warning in described.warnings)
    assert nvidia.matches(paste(status.encode(), "x"))


@pytest.mark.parametrize("word", ["SYS", "PHB", "NODE"])
def test_a_view_without_nvlink_may_be_that_of_a_virtual_machine(word):
    assert any("NVLink may be hidden" in warning for warning in read(pastes.tabs(pastes.plain(word))).warnings)
    assert not read(pastes.tabs(pastes.bridged())).warnings


@pytest.mark.parametrize(
    ("matrix", "text", "generation"),
    [
        (pastes.switched(8, 18), "", "nvlink4"),
        (pastes.switched(8, 18), "GPU 0: NVIDIA B200 (UUID: GPU-0)\n", "nvlink5"),
        (pastes.switched(8, 12), "", "nvlink3"),
        (pastes.cube_mesh(), "", "nvlink2"),
        (pastes.bridged(), "", "bridge3"),
        (pastes.Matrix(4, dict.fromkeys([(0, 1), (1, 2), (2, 3), (0, 3)], "NV2")), "", "nvlink2"),
        (pastes.plain("SYS"), "", None),
    ],
)
def test_the_generation_is_told_by_names_or_by_the_number_of_links(matrix, text, generation):
    assert read(text + pastes.tabs(matrix)).generation == generation


def test_uneven_islands_are_each_their_own():
    words = {(a, b): "NV12" for side in (0, 4) for a in range(side, side + 4) for b in range(a + 1, side + 4)}
    described = read(pastes.tabs(pastes.Matrix(8, words, sockets=(0,) * 4 + (1,) * 4)))
    assert described.hubs == (dict.fromkeys(range(4), 12), dict.fromkeys(range(4, 8), 12))
    assert described.islands() == [[0, 1, 2, 3], [4, 5, 6, 7]]
