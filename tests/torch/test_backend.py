"""The backend of torch.distributed on real ranks: right results, training like one process, one end for all."""

import math
import re

import pytest

pytest.importorskip("torch")

from collsyn.errors import DeviceError
from collsyn.runtime.launch import launch

LIMIT_S = 120
# What rounding may do to gradients of about one.
CLOSE = 1e-12


def start(name, num_ranks, timeout_s=LIMIT_S, on_report=None, **arguments):
    """Launch a function of targets.py or training.py on forked ranks."""
    return launch(f"tests.torch.{name}", arguments, num_ranks, "fork", timeout_s, on_report)


def test_forms_types_and_names():
    assert start("targets:others", 3) == [[]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [4, 8])
def test_forms_types_and_names_on_more_ranks(num_ranks):
    assert start("targets:others", num_ranks, 300) == [[]] * num_ranks


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "rounds"), [(2, 4), (4, 20), (8, 8)])
def test_random_calls_against_gloo(num_ranks, rounds):
    # 11 calls a round in up to three groups, each with a shape of its own.
    assert start("targets:compare", num_ranks, 1500, rounds=rounds, seed=num_ranks) == [[]] * num_ranks


@pytest.mark.slow
def test_what_plans_do_not_serve_comes_from_gloo_with_one_warning():
    for heard in start("targets:fall_back", 3):
        assert len(heard) == 1
        assert "BOR is left to gloo" in heard[0]


def test_strict_mode_refuses_it(monkeypatch):
    monkeypatch.setenv("COLLSYN_STRICT", "1")
    with pytest.raises(Exception, match=r"allreduce of torch.int64 with .*BOR is not served by collsyn, and COLL"):
        start("targets:fall_back", 2)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ddp", "fsdp", "moe"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_gradients_are_those_of_one_process_and_the_same_every_time(what, num_ranks):
    first, second = start(f"training:{what}", num_ranks), start(f"training:{what}", num_ranks)
    assert all(distance < CLOSE for distance, _ in first)
    assert first == second
    if what != "moe":
        # Of a mixture each rank has experts of its own.
        assert len({digest for _, digest in first}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "failed"])
def test_a_lost_rank_ends_the_others_within_seconds(how):
    heard = {}
    with pytest.raises(DeviceError):
        start("training:lose_a_rank", 4, 60, heard.setdefault, doomed=2, how=how)
    assert heard, "no rank said what it saw"
    assert 2 not in heard
    for seconds, text in heard.values():
        assert seconds < 10 and math.isfinite(seconds)
        assert re.search(r"rank 2 .*(was lost|failed: out of luck)", text)
