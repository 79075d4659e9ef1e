"""What differs between two topologies: ranks and switches by name, links by their ends."""

from collections import defaultdict
from dataclasses import dataclass, replace

from collsyn.model.size_rates import SizeRates
from collsyn.model.topology import Topology
from collsyn.units import beta_to_gb_s, format_size, rounded, s_to_us

ABSENT = "-"


@dataclass(frozen=True)
class Difference:
    """One thing that differs, as text: what it is, and how it is on the left and on the right (`-`: not there)."""

    what: str
    left: str
    right: str


def differences(left: Topology, right: Topology) -> list[Difference]:
    """All differences in what topologies do: vertices, links, reductions, minimum piece; not names, cuts or symmetries.

    Of links with the same ends the costs are compared as a set; a link and its mirror image that differ in the same way
    are one difference. O(links log links).
    """
    found = [_facts(left), _facts(right)]
    keys = [*found[0], *(key for key in found[1] if key not in found[0])]
    rows = [Difference(key, found[0].get(key, ABSENT), found[1].get(key, ABSENT)) for key in keys]
    return _folded([row for row in rows if row.left != row.right])


def _folded(rows: list[Difference]) -> list[Difference]:
    """The rows with `link b->a` put into `link a->b` as `link a<->b` where they say the same."""
    result: dict[Difference, Difference] = {}
    for row in rows:
        kind, _, ends = row.what.partition(" ")
        source, _, target = ends.partition("->")
        mirrored = replace(row, what=f"link {target}->{source}")
        if kind == "link" and mirrored in result:
            result[mirrored] = replace(row, what=f"link {target}<->{source}")
        else:
            result[row] = row
    return list(result.values())


def link_text(topology: Topology, link: int) -> str:
    """Costs of a link in words: `2 x 25 GB/s, 0.7 us, occupied 0.3 us`."""
    lanes = int(topology.count[link])
    gb_s = rounded(beta_to_gb_s(float(topology.beta_s_per_byte[link])) / lanes)
    alpha, overhead = (rounded(s_to_us(float(column[link]))) for column in (topology.alpha_s, topology.overhead_s))
    occupied = f", occupied {overhead:.6g} us" if overhead else ""
    by_size = _rates_text(topology.size_rates[link], "at") if topology.size_rates else ""
    by_size += _rates_text(topology.working_set_rates[link], "within") if topology.working_set_rates else ""
    return f"{f'{lanes} x ' if lanes > 1 else ''}{gb_s:.6g} GB/s, {alpha:.6g} us{occupied}{by_size}"


def _rates_text(rates: SizeRates, word: str) -> str:
    return "".join(f", {rate / 1e9:.6g} GB/s {word} {format_size(int(size))}" for size, rate in rates)


def _facts(topology: Topology) -> dict[str, str]:
    """Everything that is compared, key and value as text, in the order of the file."""
    facts = {"ranks": str(topology.num_ranks), "minimum piece": format_size(topology.min_piece_bytes)}
    facts["copies within a rank"] = "as messages of its port" if topology.copies_take_port else "free"
    for number, name in enumerate(topology.switch_names):
        vertex = topology.num_ranks + number
        able = [word for word in ("multicast", "reduction") if getattr(topology, word)[vertex]]
        facts[f"switch {name}"] = ", ".join(able) or "plain"
    for rank, beta in enumerate(topology.reduce_s_per_byte.tolist()):
        if beta:
            facts[f"reduction on rank {rank}"] = f"{rounded(beta_to_gb_s(beta)):.6g} GB/s"
    if topology.reduce_working_set_rates:
        facts["reductions by working set"] = _rates_text(topology.reduce_working_set_rates, "within")[2:]
    links: dict[str, list[str]] = defaultdict(list)
    for link in range(topology.num_links):
        links[f"link {topology.link_name(link)}"].append(link_text(topology, link))
    return facts | {key: " and ".join(sorted(costs)) for key, costs in links.items()}
