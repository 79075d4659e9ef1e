"""Wiring and costs of the machine presets against facts written down here, apart from the YAML."""

from collections import Counter
from itertools import combinations, pairwise, permutations

import networkx as nx
import pytest

from collsyn.data import data_names
from collsyn.errors import InputError
from collsyn.topology.presets import machine
from collsyn.topology.properties import capacity
from collsyn.topology.resolve import load_topology
from tests.support.topologies import as_graph

CUBE_MESH_DOUBLE = {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}
CUBE_MESH_SINGLE = {(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)}
MI250_LINKS = {
    4: {(i, i + 1) for i in range(0, 16, 2)},
    2: {(0, 4), (3, 7), (8, 12), (11, 15)},
    1: {(0, 8), (1, 5), (1, 9), (1, 10), (2, 6), (2, 9), (2, 10), (3, 11)}
    | {(4, 6), (5, 6), (5, 7), (9, 13), (10, 14), (12, 14), (13, 14), (13, 15)},
}


def names(topology):
    """Vertex numbers of the switches by name."""
    return {name: topology.num_ranks + i for i, name in enumerate(topology.switch_names)}


def pairs_by_lanes(topology):
    """Undirected pairs of ranks by the lanes between them; fails unless both directions are equal."""
    graph, found = as_graph(topology), {}
    for a, b, costs in graph.edges(data=True):
        if max(a, b) < topology.num_ranks:
            assert list(graph.get_edge_data(a, b).values()) == list(graph.get_edge_data(b, a).values())
            found.setdefault(costs["lanes"], set()).add((min(a, b), max(a, b)))
    return found


def costs_of(topology, a, b):
    """(GB/s, alpha us, overhead us) of the only link from a to b; vertices by number or name."""
    ends = [names(topology)[v] if isinstance(v, str) else v for v in (a, b)]
    (data,) = as_graph(topology).get_edge_data(*ends).values()
    return data["gb_s"], data["alpha_us"], data["overhead_us"]


def both_ways(topology, a, b, costs):
    """Assert that the costs hold from a to b and back."""
    assert costs_of(topology, a, b) == pytest.approx(costs)
    assert costs_of(topology, b, a) == pytest.approx(costs)


def lanes_out(topology, only=None):
    """Lanes that leave each rank, towards the vertices of `only` (ranks by default)."""
    graph = as_graph(topology)
    targets = range(topology.num_ranks) if only is None else only
    return [
        sum(d["lanes"] for _, b, d in graph.out_edges(r, data=True) if b in targets) for r in range(topology.num_ranks)
    ]


@pytest.mark.parametrize("text", ["dgx1", "ndv2", "ndv2@costs=teccl", "ndv2@costs=taccl"])
def test_dgx1_boxes_are_cube_meshes_of_six_lanes_a_gpu(text):
    topology = load_topology(text)
    assert topology.num_ranks == 8
    assert not topology.switch_names
    assert pairs_by_lanes(topology) == {2: CUBE_MESH_DOUBLE, 1: CUBE_MESH_SINGLE}
    assert lanes_out(topology) == [6] * 8


def test_dgx1_costs():
    topology = load_topology("dgx1")
    both_ways(topology, 0, 1, (50, 0.7, 0.3))
    both_ways(topology, 0, 2, (25, 0.7, 0.3))
    assert topology.min_piece_bytes > 1


def test_dgx1p_has_the_same_pairs_all_single_at_20():
    topology = load_topology("dgx1p")
    assert pairs_by_lanes(topology) == {1: CUBE_MESH_DOUBLE | CUBE_MESH_SINGLE}
    assert lanes_out(topology) == [4] * 8
    assert {costs_of(topology, *pair) for pair in CUBE_MESH_SINGLE | CUBE_MESH_DOUBLE} == {(20, 0.7, 0.3)}


def test_overrides_are_those_of_one_lane():
    topology = load_topology("dgx1@bandwidth_gb_s=10,alpha_us=0.5,overhead=alpha")
    both_ways(topology, 0, 1, (20, 0.5, 0.5))
    both_ways(topology, 0, 2, (10, 0.5, 0.5))
    assert load_topology("dgx1@overhead=none").overhead_model == "none"
    assert load_topology("dgx1@overhead=0.1").overhead_model == "0.1us"
    assert load_topology("dgx1@alpha_us=0.2").overhead_model == "alpha"
    assert load_topology("ndv2@costs=taccl,alpha_us=2").overhead_model == "alpha"


def test_overrides_that_say_what_holds_anyway_change_nothing():
    plain, said = load_topology("dgx1"), load_topology("dgx1@bandwidth_gb_s=25,alpha_us=0.7,overhead=0.3")
    for column in ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count"):
        assert getattr(plain, column).tolist() == getattr(said, column).tolist()


def test_ndv2_boxes_share_one_card_behind_two_pcie_switches():
    topology = load_topology("ndv2:3")
    assert topology.num_ranks == 24
    for box in range(3):
        for gpu in range(8):
            both_ways(topology, 8 * box + gpu, f"box{box}.pcie{gpu // 4}", (12, 0.7, 0.3))
        for socket in range(2):
            assert costs_of(topology, f"box{box}.pcie{socket}", f"box{box}.nic")[0] == pytest.approx(24)
        both_ways(topology, f"box{box}.nic", "fabric", (12.5, 1.3, 0.3))
    # 32 NVLinks, 8 + 2 + 1 others in each box, and nothing else.
    assert topology.num_links == 3 * (32 + 2 * 11)
    assert as_graph(topology).in_degree(names(topology)["fabric"]) == 3


def test_ndv2_teccl_joins_two_boxes_by_two_links():
    topology = load_topology("ndv2:2@costs=teccl")
    between = {(a, b) for a, b in as_graph(topology).edges() if a // 8 != b // 8}
    assert between == {(0, 9), (8, 1)}
    assert costs_of(topology, 0, 9) == pytest.approx((12.5, 1.3, 0))
    both_ways(topology, 0, 1, (50, 0.7, 0))
    assert topology.min_piece_bytes == 1


@pytest.mark.parametrize("boxes", [3, 4])
def test_ndv2_teccl_joins_more_boxes_by_a_switch(boxes):
    topology = load_topology(f"ndv2:{boxes}@costs=teccl")
    graph, fabric = as_graph(topology), topology.num_ranks
    assert topology.switch_names == ("fabric",)
    assert set(graph.predecessors(fabric)) == {8 * box for box in range(boxes)}
    assert set(graph.successors(fabric)) == {8 * box + 1 for box in range(boxes)}
    assert costs_of(topology, 8, "fabric") == costs_of(topology, "fabric", 1) == pytest.approx((12.5, 1.3, 0))


def test_ndv2_taccl_costs_occupy_the_links():
    topology = load_topology("ndv2:2@costs=taccl")
    assert topology.overhead_model == "alpha"
    both_ways(topology, 0, 1, (1000 / 23, 0.3, 0.3))
    both_ways(topology, 0, 2, (1000 / 46, 0.3, 0.3))
    assert costs_of(topology, 0, 9) == costs_of(topology, 8, 1) == pytest.approx((1000 / 105, 2.6, 2.6))
    assert {(a, b) for a, b in as_graph(topology).edges() if a // 8 != b // 8} == {(0, 9), (8, 1)}


def test_ndv2_taccl_of_four_boxes_takes_2_6_us_through_the_switch():
    topology = load_topology("ndv2:4@costs=taccl,sketch=1")
    first, second = costs_of(topology, 0, "fabric"), costs_of(topology, "fabric", 9)
    assert first[0] == second[0] == pytest.approx(1000 / 105)
    assert first[1] + second[1] == pytest.approx(2.6)
    # The largest overhead of a way counts for all of its links.
    assert max(first[2], second[2]) == pytest.approx(2.6)


def test_ndv2_taccl_sketch_2_joins_all_pairs_through_one_card_each_way():
    topology = load_topology("ndv2:2@costs=taccl,sketch=2")
    graph = nx.DiGraph(as_graph(topology))
    for a, b in permutations(range(16), 2):
        if a // 8 == b // 8:
            continue
        through = nx.shortest_path(graph.subgraph([a, b, *range(16, 20)]), a, b)
        links = [graph.edges[pair] for pair in pairwise(through)]
        assert sum(d["alpha_us"] for d in links) == pytest.approx(2.6)
        assert max(d["overhead_us"] for d in links) == pytest.approx(2.6)
        assert min(d["gb_s"] for d in links) == pytest.approx(1000 / 105)
        # One of the links is shared by all 64 pairs of the two boxes.
        assert any(u >= 16 and v >= 16 for u, v in pairwise(through))
    assert len([pair for pair in graph.edges if min(pair) >= 16]) == 2


def test_dgx2_box_is_one_switch():
    topology = load_topology("dgx2")
    assert (topology.num_ranks, topology.switch_names) == (16, ("box0.nvswitch",))
    for gpu in range(16):
        both_ways(topology, gpu, "box0.nvswitch", (150, 0.35, 0.3))
    assert topology.num_links == 32


def test_dgx2_boxes_share_a_card_between_two_gpus():
    topology = load_topology("dgx2:2")
    for box in range(2):
        for gpu in range(16):
            both_ways(topology, 16 * box + gpu, f"box{box}.pcie{gpu // 2}", (12, 0.7, 0.3))
        for card in range(8):
            assert costs_of(topology, f"box{box}.pcie{card}", f"box{box}.nic{card}")[0] >= 12.5
            both_ways(topology, f"box{box}.nic{card}", "fabric", (12.5, 1.3, 0.3))
    assert topology.num_links == 2 * 2 * (16 + 16 + 8 + 8)


def test_dgx2_teccl():
    topology = load_topology("dgx2:2@costs=teccl")
    between = {(a, b) for a, b in as_graph(topology).edges() if max(a, b) < 32}
    assert between == {(2 * k + 1, 16 + 2 * k) for k in range(8)} | {(17 + 2 * k, 2 * k) for k in range(8)}
    assert costs_of(topology, 1, 16) == pytest.approx((12.5, 2.6, 0))
    both_ways(topology, 3, "box0.nvswitch", (125, 0.35, 0))
    assert load_topology("dgx2@costs=teccl").num_links == 32


def test_dgx2_taccl_sketches():
    one, two = (load_topology(f"dgx2:2@costs=taccl,sketch={sketch}") for sketch in (1, 2))
    for topology in (one, two):
        assert topology.overhead_model == "alpha"
        out, into = costs_of(topology, 0, "box0.nvswitch"), costs_of(topology, "box0.nvswitch", 1)
        assert out == pytest.approx((125, 0.3, 0.3))
        assert into == pytest.approx((125, 0, 0))
    cards = [{(a, b) for a, b in as_graph(topology).edges() if max(a, b) < 32} for topology in (one, two)]
    assert cards[0] == {(2 * k + 1, 16 + 2 * k) for k in range(8)} | {(17 + 2 * k, 2 * k) for k in range(8)}
    assert cards[1] == {(k, 16 + k) for k in range(16)} | {(16 + k, k) for k in range(16)}
    assert costs_of(one, 1, 16) == pytest.approx((1000 / 105, 2.6, 2.6))
    assert costs_of(two, 1, 17) == pytest.approx((1000 / 210, 2.6, 2.6))


def test_the_first_sketch_is_the_default():
    for name in ("ndv2", "dgx2"):
        default, first = (load_topology(f"{name}:2@costs=taccl{rest}") for rest in ("", ",sketch=1"))
        assert default.wiring == first.wiring


def test_dgx_a100():
    topology = load_topology("dgx-a100:4")
    assert topology.num_ranks == 32
    for rank in range(32):
        both_ways(topology, rank, f"box{rank // 8}.nvswitch", (300, 0.35, 0.3))
        both_ways(topology, rank, ("even", "odd")[rank % 2], (25, 1.3, 0.3))
    assert topology.num_links == 4 * 32
    assert load_topology("dgx-a100").num_links == 16


def test_dgx_h100():
    topology = load_topology("dgx-h100:2")
    for rank in range(16):
        both_ways(topology, rank, f"box{rank // 8}.nvswitch", (450, 0.35, 0.3))
        both_ways(topology, rank, f"rail{rank % 8}", (50, 1.3, 0.3))
    capable = [topology.switch_names[v - 16] for v in range(topology.num_vertices) if topology.multicast[v]]
    assert capable == ["box0.nvswitch", "box1.nvswitch"]
    assert topology.multicast.tolist() == topology.reduction.tolist()


def test_mi250():
    topology = load_topology("mi250")
    assert pairs_by_lanes(topology) == MI250_LINKS
    assert lanes_out(topology) == [7] * 16
    both_ways(topology, 0, 1, (200, 0.7, 0.3))
    both_ways(topology, 0, 4, (100, 0.7, 0.3))
    both_ways(topology, 0, 8, (50, 0.7, 0.3))
    two = load_topology("mi250:2")
    assert lanes_out(two) == [7] * 32
    for rank in range(32):
        both_ways(two, rank, "fabric", (16, 1.3, 0.3))


def test_mi300x_is_a_full_mesh():
    topology = load_topology("mi300x")
    assert pairs_by_lanes(topology) == {1: set(combinations(range(8), 2))}
    both_ways(topology, 2, 5, (64, 0.7, 0.3))
    both_ways(load_topology("mi300x:2"), 9, "fabric", (50, 1.3, 0.3))


def test_gb200_nvl72():
    topology = load_topology("gb200-nvl72")
    assert (topology.num_ranks, topology.num_links) == (72, 144)
    assert topology.multicast[72]
    assert topology.reduction[72]
    both_ways(topology, 71, "box0.nvswitch", (900, 0.35, 0.3))


def test_hetero_h20_v100_is_two_boxes_of_either_kind_on_one_fabric():
    topology = load_topology("hetero-h20-v100")
    v100, h20 = range(16), range(16, 32)
    assert topology.num_ranks == 32
    assert [sum(v < 32 for v in box) for box in topology.boxes] == [8] * 4
    cube = {(a + base, b + base): 50 for base in (0, 8) for a, b in CUBE_MESH_DOUBLE}
    cube |= {(a + base, b + base): 25 for base in (0, 8) for a, b in CUBE_MESH_SINGLE}
    assert pairs_by_lanes(topology) == {
        2: {pair for pair, gb_s in cube.items() if gb_s == 50},
        1: {pair for pair, gb_s in cube.items() if gb_s == 25},
    }
    for rank in v100:
        both_ways(topology, rank, f"box{rank // 8}.pcie{rank % 8 // 4}", (12, 0.7, 0.3))
    for box in (0, 1):
        both_ways(topology, f"box{box}.nic", "fabric", (12.5, 1.3, 0.3))
    for rank in h20:
        both_ways(topology, rank, f"box{rank // 8}.nvswitch", (450, 0.35, 0.3))
        both_ways(topology, rank, "fabric", (50, 1.3, 0.3))
    fabric = names(topology)["fabric"]
    entering = {cut.name: capacity(topology, cut.vertices)[1] / 1e9 for cut in topology.cuts}
    assert as_graph(topology).in_degree(fabric) == 2 + 16
    assert entering["v100 boxes"] == pytest.approx(2 * 12.5)
    assert entering["h20 boxes"] == pytest.approx(16 * 50)


@pytest.mark.parametrize(("text", "sizes"), [("1x2", [8, 8, 8]), ("0x1", [8]), ("2x0", [8, 8]), ("1x1", [8, 8])])
def test_hetero_h20_v100_of_other_numbers(text, sizes):
    topology = load_topology(f"hetero-h20-v100:{text}")
    assert [sum(v < topology.num_ranks for v in box) for box in topology.boxes] == sizes
    assert nx.is_strongly_connected(as_graph(topology))
    kinds = [int(count) for count in text.split("x")]
    assert sum(name.endswith(".nvswitch") for name in topology.switch_names) == kinds[1]


@pytest.mark.parametrize("text", ["2", "0x0", "1x1x1"])
def test_hetero_h20_v100_needs_a_number_for_each_kind(text):
    with pytest.raises(InputError, match="expected hetero-h20-v100:V100xH20 with at least 1 box"):
        load_topology(f"hetero-h20-v100:{text}")


def every_instance():
    """A text of every machine's every instance of equal boxes, of one box and of more where there may be."""
    for name in data_names("profiles"):
        found = machine(name)
        for instance in found.instances:
            options = ",".join(f"{key}={value}" for key, value in instance.options.items())
            for boxes in [1, *(part.min_boxes for part in instance.fabrics)]:
                if len(instance.kinds) == 1:
                    yield f"{name}:{boxes}" + (f"@{options}" if options else "")


@pytest.mark.parametrize("text", list(every_instance()))
def test_every_machine_is_connected_in_equal_boxes(text):
    topology = load_topology(text)
    graph = as_graph(topology)
    assert nx.is_strongly_connected(graph)
    boxes = int(text.split("@")[0].split(":")[1])
    assert len(topology.boxes) == boxes
    assert topology.num_ranks % boxes == 0
    size = topology.num_ranks // boxes
    for number, box in enumerate(topology.boxes):
        assert [v for v in box if v < topology.num_ranks] == list(range(number * size, (number + 1) * size))
        assert all(topology.vertex_name(v).startswith(f"box{number}.") for v in box if v >= topology.num_ranks)
    shapes = [
        Counter(tuple(sorted(d.items())) for *_, d in graph.subgraph(box).edges(data=True)) for box in topology.boxes
    ]
    assert all(shape == shapes[0] for shape in shapes)
    assert (topology.overhead_s <= topology.alpha_s).all()


@pytest.mark.parametrize("name", data_names("profiles"))
def test_physical_machines_have_an_overhead_and_a_minimum_piece(name):
    several = "x".join("2" for _ in machine(name).instances[0].kinds)
    for text in (name, f"{name}:{several}") if machine(name).instances[0].fabrics else (name,):
        topology = load_topology(text)
        assert topology.overhead_model == "0.3us"
        assert topology.min_piece_bytes > 1


@pytest.mark.parametrize("name", data_names("profiles"))
def test_every_number_of_a_machine_has_its_source_beside_it(name):
    from collsyn.data import data_dir

    lines = (data_dir("profiles") / f"{name}.yaml").read_text().splitlines()
    physical = lines[: lines.index("variants:")] if "variants:" in lines else lines
    costs = [line for line in physical if "bandwidth_gb_s" in line and not line.startswith("#")]
    assert costs
    assert all("source:" in line for line in costs)
    assert all("#" in line for line in physical if line.startswith(("overhead_us:", "min_piece:")))
    assert sum("options:" in line for line in lines) == sum(line.startswith("    source:") for line in lines)


@pytest.mark.parametrize(
    ("text", "gb_s"),
    [
        ("mi250", 342.857),
        ("mi250:2", 354.133),
        ("mi250:4", 341.333),
        ("dgx-a100", 342.857),
        ("dgx-a100:2", 346.667),
        ("dgx-a100:4", 266.667),
        ("dgx-a100:8", 228.571),
    ],
)
def test_the_bottleneck_of_gathering_is_among_ranks_boxes_and_cuts(text, gb_s):
    # Algorithm bandwidths of allgather that ForestColl (arXiv 2402.06787) proves optimal for these machines.
    topology = load_topology(text)
    n = topology.num_ranks
    sets = [(rank,) for rank in range(n)] + [cut.vertices for cut in topology.cuts] + list(topology.boxes)
    outside = [(n - sum(v < n for v in inside), capacity(topology, inside)[1]) for inside in sets]
    assert min(n * entering / ranks for ranks, entering in outside if ranks) / 1e9 == pytest.approx(gb_s, rel=1e-5)
