"""Values that shared options accept, and what they say to others."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import _options
from collsyn.model.kinds import KINDS


def taken(decorator, args):
    """The keyword arguments that a command with these options gets."""

    @click.command()
    @decorator
    def command(**values):
        return values

    return command.main(args, standalone_mode=False)


def refused(decorator, args):
    """The message with which a command refuses its arguments."""
    with pytest.raises(click.UsageError) as caught:
        taken(decorator, args)
    return caught.value.format_message()


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_of_the_model_is_taken(kind):
    assert taken(_options.collective_option(), ["--collective", kind]) == {"collective": kind}


@pytest.mark.parametrize("spelling", ["reducescatter", "reduce-scatter", "Reduce_Scatter"])
def test_spellings_of_a_collective(spelling):
    option = _options.collective_option()
    assert taken(option, ["--collective", spelling]) == {"collective": "reducescatter"}


def test_an_unknown_collective_is_answered_with_the_known_ones():
    message = refused(_options.collective_option(), ["--collective", "gossip"])
    assert "'--collective': no collective 'gossip'" in message
    assert all(name in message for name in KINDS)


def test_size_in_bytes_and_its_default():
    assert taken(_options.size_option(), ["--size", "3K"]) == {"size_bytes": 3072}
    assert taken(_options.size_option(), []) == {"size_bytes": 64 * 2**20}


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "abc", "", "1X"])
def test_a_wrong_size_names_the_option(text):
    assert "'--size'" in refused(_options.size_option(), ["--size", text])


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("1K:8K", (1024, 2048, 4096, 8192)),
        ("1K:9000", (1024, 2048, 4096, 8192)),
        ("1KB:1MB:10", (10**3, 10**4, 10**5, 10**6)),
        ("5:5", (5,)),
    ],
)
def test_size_range(text, sizes):
    assert taken(_options.sizes_options(), ["--sizes", text])["sizes"] == sizes


@pytest.mark.parametrize("text", ["1K", "8K:1K", "1:2:3:4", "1K:8K:1", "1K:8K:x", ":", "0:8"])
def test_a_wrong_size_range_is_refused(text):
    assert "'--sizes'" in refused(_options.sizes_options(), ["--sizes", text])


def test_chosen_sizes():
    assert _options.chosen_sizes(None, None) == ((64 * 2**20,), False)
    assert _options.chosen_sizes(None, None, default=None) == ((), False)
    assert _options.chosen_sizes(8, None) == ((8,), False)
    assert _options.chosen_sizes(None, (8, 16)) == ((8, 16), True)
    with pytest.raises(click.UsageError, match="exclude"):
        _options.chosen_sizes(8, (8, 16))


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_ranks_are_kept_in_their_order(ranks):
    assert _options.ranks(",".join(map(str, ranks))) == tuple(ranks)


@given(st.integers(0, 10**6), st.integers(0, 50), st.integers(0, 50))
def test_groups_of_ranges(start, first, second):
    middle = start + first + 1
    groups = (tuple(range(start, middle)), tuple(range(middle, middle + second + 1)))
    text = f"{start}-{middle - 1}/{middle}-{middle + second}"
    assert taken(_options.groups_option(), ["--groups", text]) == {"groups": groups}


@pytest.mark.parametrize("text", ["", "a", "0,,1", "3-1", "0,0", "0-2,1", "-1", "0-999999999", "9" * 5000, "1.0"])
def test_wrong_ranks_are_refused(text):
    assert "'--subset'" in refused(_options.subset_option(), [f"--subset={text}"])


def test_a_problem_has_all_its_options(tmp_path):
    args = ["--collective", "allgather", "--topology", "ring:8", "--root", "3", "--subset", "0-3"]
    args += ["--counts", str(tmp_path / "c"), "--spec", str(tmp_path / "s")]
    assert taken(_options.problem_options(), args) == {
        "collective": "allgather",
        "topology": "ring:8",
        "root": 3,
        "subset": (0, 1, 2, 3),
        "groups": None,
        "counts": tmp_path / "c",
        "spec": tmp_path / "s",
    }
    assert "--topology" in refused(_options.problem_options(), args[:2])
    assert taken(_options.problem_options(False), args[:2])["topology"] is None


@pytest.mark.parametrize(
    "option, args, values",
    [
        (_options.json_option(), ["--json"], {"as_json": True}),
        (_options.seed_option(), [], {"seed": 0}),
        (_options.seed_option(), ["--seed", "7"], {"seed": 7}),
        (_options.time_limit_option(), ["--time-limit", "0.5"], {"time_limit_s": 0.5}),
        (_options.output_option("Where."), ["-o", "none"], {"output": "none"}),
        (_options.output_option("Where.", "a.yaml"), [], {"output": "a.yaml"}),
    ],
)
def test_small_options(option, args, values):
    assert taken(option, args) == values


@pytest.mark.parametrize(
    "option, args",
    [
        (_options.seed_option(), ["--seed", "-1"]),
        (_options.time_limit_option(), ["--time-limit", "0"]),
        (_options.time_limit_option(), ["--time-limit", "nan"]),
        (_options.time_limit_option(), ["--time-limit", "inf"]),
        (_options.time_limit_option(), ["--time-limit", "soon"]),
    ],
)
def test_wrong_values_of_small_options(option, args):
    assert f"'{args[0]}'" in refused(option, args)
