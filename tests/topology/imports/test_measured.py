"""Benchmarks of others: matrices of bandwidths and pairs become profiles, logs of collectives baselines."""

import json
from dataclasses import replace

import numpy as np
import pytest

from collsyn.bench.history import read_runs
from collsyn.bench.regression import judge
from collsyn.bench.result import Row, Timing
from collsyn.errors import InputError
from collsyn.model.metrics import busbw_factor
from collsyn.model.profile import Profile, profile_text
from collsyn.topology.connect import require_connected
from collsyn.topology.imports.baseline import Baseline
from collsyn.topology.imports.recognise import Hints, read_content
from tests.support.pastes import nccl_log, p2p

SIZES = [1 << power for power in range(10, 31, 4)]


def read(text, **hints):
    return read_content(text.encode(), "log.txt", Hints(**hints))[1]


def matrix(n, rate):
    """Bandwidths from a to b as a function of both; the diagonal is memory."""
    return [[1500.0 if a == b else rate(a, b) for b in range(n)] for a in range(n)]


def nvbandwidth(gb_s, arrow="<-", test="device_to_device_memcpy_write_ce"):
    """Output of nvbandwidth, whose diagonal is N/A."""
    text = f"Running {test}.\nmemcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s)\n"
    text += "".join(f"{i:10d}" for i in range(len(gb_s))) + "\n"
    for i, row in enumerate(gb_s):
        text += f"{i} " + " ".join("N/A" if i == j else f"{rate:9.2f}" for j, rate in enumerate(row)) + "\n"
    return text + "\nSUM 1.0\n"


def links_of(profile):
    return {(link.src, link.dst): 1e-9 / link.beta_s_per_byte.value for link in profile.links}


@pytest.mark.parametrize(("title", "reads"), [("P2P Writes", False), ("P2P Reads", True)])
def test_p2p_matrices_keep_their_direction(title, reads):
    rates = matrix(4, lambda a, b: 20.0 + 10 * a + b)
    text = p2p(rates, 3.0, f"P2P=Enabled Bandwidth ({title})")
    profile = read(text)
    want = {(b, a) if reads else (a, b): rates[a][b] for a in range(4) for b in range(4) if a != b}
    assert links_of(profile) == pytest.approx(want)
    assert {link.alpha_s.value for link in profile.links} == {3e-6}
    require_connected(profile.topology())


def test_the_matrix_with_peer_access_goes_before_the_one_without():
    slow, fast = matrix(2, lambda a, b: 10.0), matrix(2, lambda a, b: 200.0)
    text = p2p(slow, None, "P2P=Disabled Bandwidth") + p2p(fast)
    assert links_of(read(text)) == pytest.approx({(0, 1): 200.0, (1, 0): 200.0})
    only = read(p2p(slow, None, "P2P=Disabled Bandwidth"))
    assert "host memory" in only.facts["warnings"][0]


@pytest.mark.parametrize("arrow", ["<-", "->"])
def test_nvbandwidth(arrow):
    rates = matrix(3, lambda a, b: 100.0 + 60 * a + b)
    want = {(b, a) if arrow == "<-" else (a, b): rates[a][b] for a in range(3) for b in range(3) if a != b}
    assert links_of(read(nvbandwidth(rates, arrow))) == pytest.approx(want)


def test_pairs_that_are_all_alike_are_taken_to_share_a_port_and_this_is_said():
    text = p2p(matrix(4, lambda a, b: 270.0 + a))
    profile = read(text)
    assert "share" in profile.facts["assumed"]["ports"]
    topology = profile.topology()
    # Out of a rank no more than one pair's bandwidth, however many pairs there are.
    for rank in range(4):
        leaving = topology.bandwidth[topology.src == rank].sum()
        assert leaving == pytest.approx(271.5e9, rel=0.01)
    own = read(text, pairs="own").topology()
    assert own.bandwidth[own.src == 0].sum() == pytest.approx(3 * 271.5e9, rel=0.01)
    uneven = read(p2p(matrix(4, lambda a, b: 48.0 if abs(a - b) == 2 else 24.0)))
    assert (uneven.ports, uneven.topology().num_vertices) == ((), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (p2p(matrix(3, lambda a, b: 5.0)).replace("  5.00", "", 1), "the row is not whole"),
        (p2p(matrix(3, lambda a, b: 5.0)).replace("  5.00", "  0.00", 1), "expected GB/s"),
        (nvbandwidth(matrix(2, lambda a, b: 5.0), "<->"), "one-way copies"),
        ("Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n 0\n0 5\n", "one-way"),
        (nvbandwidth([[1.0]]), "measures 1 GPU"),
    ],
)
def test_matrices_that_are_not_whole_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        read(text)


def osu(what, rows, command="$ mpirun -n 2 osu_bw D D"):
    """Output of an OSU benchmark."""
    return f"{command}\n# OSU MPI-CUDA {what} Test v7.5\n# Datatype: MPI_CHAR.\n# Size      Number\n" + "".join(
        f"{size:<12}{value:16.2f}              Pass\n" for size, value in rows
    )


def test_osu_of_a_pair():
    bandwidth = osu("Bandwidth", [(size, 24000.0 * size / (size + 50000)) for size in SIZES])
    latency = osu("Latency", [(1, 2.5), (1024, 2.5), (1 << 20, 46.2)])
    profile = read(bandwidth + latency)
    assert (profile.num_ranks, profile.backend) == (2, "cuda")
    assert links_of(profile)[0, 1] == pytest.approx(24.0, rel=1e-3)
    assert profile.links[0].alpha_s.value == pytest.approx(2.5e-6)
    assert "alpha" in read(bandwidth).facts["assumed"]
    line = read(osu("Latency", [(size, 3 + size / 12000) for size in SIZES]))
    assert links_of(line)[1, 0] == pytest.approx(12.0, rel=0.01)
    assert line.links[0].alpha_s.value == pytest.approx(3e-6, rel=0.01)
    assert line.links[0].linear


def test_times_that_are_no_line_are_said_to_be_none():
    profile = read(osu("Latency", [(size, 1400.0 if size < 20000 else 30 + size / 9000) for size in SIZES]))
    assert not profile.links[0].linear
    assert "rough" in profile.facts["warnings"][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (osu("Latency", [(1, 2.0)]), "latency only"),
        (osu("Bandwidth", [(4, 2.0)]), "ends at 4 bytes"),
        (osu("Bandwidth", []), "no row"),
        (osu("Multiple Bandwidth / Message Rate", [(4, 2.0)]), "not read"),
        (osu("Allreduce Latency", [(4, 2.0)], ""), "--num-ranks"),
        (
            "".join(osu("Bandwidth", [(1 << 24, 4e4)], f"export HIP_VISIBLE_DEVICES=0,{k}") for k in (1, 2)),
            "one by one",
        ),
    ],
)
def test_osu_that_tells_too_little_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("what", "kind", "share"),
    [("Allreduce", "allreduce", 1), ("Allgather", "allgather", 8), ("All-to-All Personalized Exchange", "alltoall", 8)],
)
@pytest.mark.parametrize("command", ["srun -N2 --ntasks-per-node=4 osu_x", "mpirun -np 8 osu_x", "srun -n8 osu_x"])
def test_osu_collectives_are_in_the_sizes_of_nccl_tests(what, kind, share, command):
    baseline = read(osu(f"{what} Latency", [(1024, 20.0), (4096, 30.0)], command))
    assert [(row.collective, row.num_ranks, row.size_bytes, row.time_s) for row in baseline.rows] == [
        (kind, 8, 1024 * share, pytest.approx(20e-6)),
        (kind, 8, 4096 * share, pytest.approx(30e-6)),
    ]


def log(ranks, test="all_reduce", kind="allreduce", **options):
    return nccl_log([(size, 20 + size / 2e5) for size in SIZES], ranks, busbw_factor(kind, ranks), test, **options)


@pytest.mark.parametrize("prefix", ["", "0: ", "[1,0]<stdout>:", "   [1,0]<stdout>:", "    "])
@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 72, 144])
def test_rows_and_ranks_of_a_log(ranks, prefix):
    baseline = read(log(ranks, prefix=prefix))
    assert [row.size_bytes for row in baseline.rows] == SIZES
    assert {(row.collective, row.num_ranks, row.dtype, row.op, row.root) for row in baseline.rows} == {
        ("allreduce", ranks, "float", "sum", -1)
    }
    assert [row.time_s for row in baseline.rows] == pytest.approx(
        [(20 + size / 2e5) * 1e-6 for size in SIZES], rel=1e-3
    )


@pytest.mark.parametrize(
    ("test", "kind", "redop"),
    [("all_gather", "allgather", "none"), ("reduce_scatter", "reducescatter", "sum"), ("alltoall", "alltoall", "none")],
)
def test_collectives_by_name(test, kind, redop):
    text = log(8, test, kind, redop=redop)
    assert {(row.collective, row.num_ranks) for row in read(text).rows} == {(kind, 8)}
    nameless = text.replace(f"{test}_perf", "")
    if redop == "none":
        with pytest.raises(InputError, match="--collective"):
            read(nameless)
    assert read(nameless, collective=kind).rows[0].collective == kind


def test_a_broadcast_does_not_tell_its_ranks():
    text = log(8, "broadcast", "broadcast", redop="none")
    with pytest.raises(InputError, match="--num-ranks"):
        read(text)
    assert read(text, num_ranks=8).rows[0].num_ranks == 8
    assert read(log(8, "broadcast", "broadcast", redop="none", say_ranks=True)).rows[0].num_ranks == 8


def test_ranks_that_are_said_and_do_not_fit_are_not_believed():
    text = log(8).replace("# Collective", "#  Rank 15 Group  0 Pid 1 on node device  7 [0x01] GPU\n# Collective")
    baseline = read(text)
    assert baseline.rows[0].num_ranks == 8
    assert "16 ranks are said" in baseline.warnings[0]


def test_noise_cut_rows_and_wrong_results_are_left_out():
    lines = log(8).split("\n")
    first = next(number for number, line in enumerate(lines) if line.split()[:1] == ["1024"])
    lines.insert(first + 1, "node:1:2 [3] NCCL INFO comm 0x1 rank 3 nranks 8 busId 1000 - Init COMPLETE")
    lines[first + 2] = lines[first + 2].replace("     0 ", "     7 ", 1)
    lines[first + 3] = lines[first + 3][:60]
    baseline = read("\n".join(lines))
    assert [row.size_bytes for row in baseline.rows] == [SIZES[0], *SIZES[3:]]
    assert any("wrong results" in warning for warning in baseline.warnings)
    assert any("not whole" in warning for warning in baseline.warnings)


def test_a_row_that_the_log_ran_into_and_rows_of_no_bytes():
    lines = log(8).split("\n")
    first = next(number for number, line in enumerate(lines) if line.split()[:1] == ["1024"])
    lines[first] = (
        lines[first][: len(lines[first]) // 2 + 24].rstrip() + "node:1:2 [0] NCCL INFO Channel 00 : 0[1] via P2P"
    )
    lines.insert(first, lines[first].replace("1024", "   0").replace(" 256 ", "   0 "))
    assert lines[first + 1].split()[8].startswith("0node")
    baseline = read("\n".join(lines))
    assert [row.size_bytes for row in baseline.rows] == SIZES
    assert baseline.rows[0].in_place_s is None
    assert baseline.warnings == ()


def test_old_headers_and_few_columns():
    old = log(8).replace("  root ", " ").replace("#wrong", " error")
    old = "\n".join(line.replace("    -1 ", " ").replace("     0", " 1e-06") for line in old.split("\n"))
    assert len(read(old).rows) == len(SIZES)
    few = "$ ./all_reduce_perf -g 8\n  size   time   algbw   busbw\n"
    for size in SIZES:
        us = size / 1e5 + 10
        few += f"{size:_} {us:.1f} {size / us / 1e3:.2f} {size / us / 1e3 * 1.75:.2f}\n"
    assert {(row.num_ranks, row.op) for row in read(few).rows} == {(8, "sum")}


def test_runs_of_one_log_are_launches_of_one_row_and_bench_reads_them(tmp_path):
    baseline = read(log(8) + log(8))
    assert isinstance(baseline, Baseline)
    assert {len(row.times_s) for row in baseline.rows} == {2}
    (tmp_path / "b.json").write_text(json.dumps(baseline.document()))
    (run,) = read_runs(tmp_path / "b.json")
    assert {key.size_bytes for key in run.samples} == set(SIZES)
    assert {(key.collective, key.num_ranks, key.op) for key in run.samples} == {("allreduce", 8, "sum")}
    for key, sample in run.samples.items():
        assert np.asarray(sample.blocks_s).shape == (2, 1)
        assert np.asarray(sample.blocks_s) == pytest.approx((20 + key.size_bytes / 2e5) * 1e-6, rel=1e-3)


def test_a_baseline_of_a_log_judges_rows_of_bench(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(read(log(8) + log(8)).document()))
    runs = read_runs(tmp_path / "b.json")

    def row(size, factor):
        seconds = (20 + size / 2e5) * 1e-6 * factor
        timing = Timing(seconds, 0, (seconds * 0.999, seconds, seconds * 1.001))
        rest = {"count": size // 4, "dtype": "float32", "op": "sum", "root": -1, "in_place": None, "iterations": 1}
        return Row("allreduce", 8, "x", "ring", size, size, **rest, out_of_place=timing)

    slow, same, new = judge([row(SIZES[2], 2.0), row(SIZES[3], 1.0), row(12, 1.0)], runs, ())
    assert (slow.runs, slow.ratio, slow.regressed) == (1, pytest.approx(2, rel=0.01), True)
    assert (same.runs, same.ratio, same.regressed) == (1, pytest.approx(1, rel=0.01), False)
    assert new.word == "new"


def test_json_of_nccl_tests_and_of_bench():
    baseline = read(log(8))
    again = read(json.dumps(baseline.document()))
    assert again.rows == tuple(replace(row, in_place_s=None) for row in baseline.rows)
    document = baseline.document()
    for row in document["results"]:
        del row["collective"], row["group_size"], row["samples_us"]
        row["experiment_name"] = "all_reduce_perf"
    by_ratio = read(json.dumps({**document, "results": document["results"][-2:]}))
    assert {(row.collective, row.num_ranks) for row in by_ratio.rows} == {("allreduce", 8)}
    listed = read(json.dumps({**document, "config": {"devices": [{}] * 8}}))
    assert {row.num_ranks for row in listed.rows} == {8}
    document["results"][0]["out_of_place"]["nwrong"] = 3
    assert len(read(json.dumps(document), num_ranks=8).rows) == len(SIZES) - 1
    with pytest.raises(InputError, match=r"log.txt:results\[1\].group_size: .*--num-ranks"):
        read(json.dumps(document))
    with pytest.raises(InputError, match="version"):
        read(json.dumps({**document, "version": 1}))


@pytest.mark.parametrize("text", ["Avg bus bandwidth is 230.1", " busbw: 3722 Gbps\n"])
def test_sums_of_a_log_without_its_table_are_refused(text):
    with pytest.raises(InputError, match="no row of a table"):
        read(text)


def test_profiles_name_the_kind_of_their_source_and_its_hash_only():
    profile = read("user@host:~/work$ ./p2pBandwidthLatencyTest\n" + p2p(matrix(2, lambda a, b: 9.0)))
    assert isinstance(profile, Profile)
    assert set(profile.method) == {"source", "input"}
    assert "host" not in profile_text(profile).replace("backend: host", "")
