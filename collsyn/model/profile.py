"""A profile: what was measured on a machine, link by link, with confidence and residuals; it yields a topology."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collsyn.files import write_atomic
from collsyn.model.fields import Fields, load_document
from collsyn.model.topology import Topology
from collsyn.model.topology_file import flow
from collsyn.units import beta_to_gb_s, gb_s_to_beta, rounded, s_to_us, us_to_s

SCHEMA = "collsyn-profile/1"


@dataclass(frozen=True)
class Estimate:
    """A fitted value with the 95% interval around it, in SI units."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LinkFit:
    """Costs of one ordered pair: time = alpha + bytes * beta, overhead what each message of a stream pays of alpha.

    `residual` is the root mean square of relative errors of the line at the measured sizes, `linear` says whether it
    fits, and `points` are the measured (bytes, median seconds).
    """

    src: int
    dst: int
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    overhead_s: Estimate
    residual: float
    linear: bool
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Profile:
    """Measured costs of all ordered pairs of ranks of one machine.

    `method` holds how it was measured (sizes, repeats, seed, backend's transport), `facts` what is known of the machine
    (counts and kinds only; never a name of a host or user).
    """

    name: str
    backend: str
    num_ranks: int
    links: tuple[LinkFit, ...]
    reduce_s_per_byte: float = 0.0
    method: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def topology(self) -> Topology:
        """The measured machine as a topology: one link an ordered pair."""
        return Topology(
            name=self.name,
            num_ranks=self.num_ranks,
            src=np.array([link.src for link in self.links], dtype=np.int32),
            dst=np.array([link.dst for link in self.links], dtype=np.int32),
            alpha_s=np.array([link.alpha_s.value for link in self.links]),
            beta_s_per_byte=np.array([link.beta_s_per_byte.value for link in self.links]),
            overhead_s=np.array([min(link.overhead_s.value, link.alpha_s.value) for link in self.links]),
            count=np.ones(len(self.links), dtype=np.int32),
            reduce_s_per_byte=np.full(self.num_ranks, self.reduce_s_per_byte),
            provenance={"source": "profile", "backend": self.backend},
        )


def read_profile(path: str | Path) -> Profile:
    """The profile in a YAML file; raises InputError that names file and key."""
    return profile_from_fields(load_document(path))


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as YAML; reading and writing it again gives the same bytes."""
    write_atomic(path, profile_text(profile))


def profile_text(profile: Profile) -> str:
    """The YAML text of a profile, one link a line."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "name": profile.name,
        "backend": profile.backend,
        "ranks": profile.num_ranks,
        "reduce_gb_s": rounded(beta_to_gb_s(profile.reduce_s_per_byte)) if profile.reduce_s_per_byte else 0,
        "method": dict(profile.method),
        "facts": dict(profile.facts),
    }
    lines = [f"{key}: {flow(value)}" for key, value in head.items()]
    return "\n".join([*lines, "links:", *(f"  - {flow(_link_document(link))}" for link in profile.links)]) + "\n"


def profile_from_fields(fields: Fields) -> Profile:
    """The profile of a document; raises InputError."""
    fields.text("schema", choices=[SCHEMA])
    num_ranks = fields.integer("ranks", minimum=1)
    reduce_gb_s = fields.number("reduce_gb_s", default=0, minimum=0)
    profile = Profile(
        name=fields.text("name", default=Path(fields.file).stem),
        backend=fields.text("backend", choices=["host", "cuda"]),
        num_ranks=num_ranks,
        links=tuple(_read_link(entry, num_ranks) for entry in fields.each("links")),
        reduce_s_per_byte=gb_s_to_beta(reduce_gb_s) if reduce_gb_s else 0.0,
        method=fields.mapping("method", default={}),
        facts=fields.mapping("facts", default={}),
    )
    fields.done()
    return profile


def _link_document(link: LinkFit) -> dict[str, Any]:
    beta = link.beta_s_per_byte
    return {
        "from": link.src,
        "to": link.dst,
        "alpha_us": rounded(s_to_us(link.alpha_s.value)),
        "alpha_ci_us": [rounded(s_to_us(link.alpha_s.low)), rounded(s_to_us(link.alpha_s.high))],
        "bandwidth_gb_s": rounded(beta_to_gb_s(beta.value)),
        "bandwidth_ci_gb_s": [rounded(beta_to_gb_s(beta.high)), rounded(beta_to_gb_s(beta.low))],
        "overhead_us": rounded(s_to_us(link.overhead_s.value)),
        "overhead_ci_us": [rounded(s_to_us(link.overhead_s.low)), rounded(s_to_us(link.overhead_s.high))],
        "residual": rounded(link.residual),
        "linear": link.linear,
        "points": [[size, rounded(s_to_us(seconds))] for size, seconds in link.points],
    }


def _read_link(entry: Fields, num_ranks: int) -> LinkFit:
    src, dst = (entry.integer(key, minimum=0, maximum=num_ranks - 1) for key in ("from", "to"))
    if src == dst:
        entry.fail("to", "is the rank that the link comes from; expected another one")
    bandwidth = entry.number("bandwidth_gb_s", above=0)
    low, high = _interval(entry, "bandwidth_ci_gb_s", bandwidth)
    points = entry.items("points", default=[])
    if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], int) and p[0] > 0 for p in points):
        entry.fail("points", "expected pairs [bytes, microseconds]")
    fit = LinkFit(
        src=src,
        dst=dst,
        alpha_s=_estimate_us(entry, "alpha"),
        beta_s_per_byte=Estimate(gb_s_to_beta(bandwidth), gb_s_to_beta(high), gb_s_to_beta(low)),
        overhead_s=_estimate_us(entry, "overhead"),
        residual=entry.number("residual", default=0, minimum=0),
        linear=entry.flag("linear", default=True),
        points=tuple((size, us_to_s(us)) for size, us in points),
    )
    entry.done()
    return fit


def _estimate_us(entry: Fields, name: str) -> Estimate:
    value = entry.number(f"{name}_us", default=0, minimum=0)
    low, high = _interval(entry, f"{name}_ci_us", value)
    return Estimate(us_to_s(value), us_to_s(low), us_to_s(high))


def _interval(entry: Fields, key: str, value: float) -> tuple[float, float]:
    numbers = entry.numbers(key, default=[value, value])
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        entry.fail(key, "expected two numbers, the lower one first")
    return float(numbers[0]), float(numbers[1])
