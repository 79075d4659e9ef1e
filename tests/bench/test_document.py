"""The JSON has the keys of nccl-tests, and what collsyn adds is beside them."""

import json

import pytest

from collsyn.bench.document import document
from collsyn.bench.result import BenchResult, Comparison, Row, Timing

ROW = Row(
    collective="allgather",
    group_size=4,
    source="allgather.json",
    method="direct",
    asked_bytes=1000,
    size_bytes=992,
    count=62,
    dtype="float32",
    op="",
    root=-1,
    out_of_place=Timing(1e-6, 0),
    in_place=None,
    iterations=20,
    simulated_s=2e-6,
    against={"mpi": Comparison(3e-6, 3.0, 2.5, 3.5), "other": Comparison(reason="cannot")},
)


def test_keys_of_nccl_tests_and_ours():
    result = BenchResult([ROW], {"iterations": 20}, {"tool": "collsyn"}, [{"rank": 0}])
    doc = json.loads(json.dumps(document(result)))
    assert {"version", "config", "results", "out_of_bounds", "average_bus_bandwidth", "provenance"} <= doc.keys()
    assert doc["config"] == {"iterations": 20, "devices": [{"rank": 0}]}
    row = doc["results"][0]
    assert {"size", "count", "type", "redop", "root", "actual_iterations", "experiment_name"} <= row.keys()
    assert row["out_of_place"] == {
        "time": pytest.approx(1.0),
        "alg_bw": pytest.approx(0.992),
        "bus_bw": pytest.approx(0.744),
        "nwrong": 0,
    }
    assert (row["in_place"], row["type"], row["redop"], row["root"]) == (None, "float", "none", -1)
    assert (row["simulated_us"], row["bound_us"]) == (pytest.approx(2.0), None)
    assert row["against"]["mpi"] == {"time": pytest.approx(3.0), "ratio": 3.0, "ci": [2.5, 3.5]}
    assert row["against"]["other"] == {"time": None, "ratio": None, "ci": None, "reason": "cannot"}
    assert doc["out_of_bounds"] == {"count": 0, "okay": True}
    assert doc["average_bus_bandwidth"]["bandwidth"] == pytest.approx(0.744)


def test_a_wrong_result_has_no_time_and_is_counted():
    bad = Row(**{**vars(ROW), "out_of_place": Timing(None, 5)})
    doc = document(BenchResult([ROW, bad], {}, {}))
    assert doc["results"][1]["out_of_place"] == {"time": None, "alg_bw": None, "bus_bw": None, "nwrong": 5}
    assert doc["out_of_bounds"] == {"count": 1, "okay": False}
    assert doc["average_bus_bandwidth"]["bandwidth"] == pytest.approx(0.744)
