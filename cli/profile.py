"""`collsyn profile`: what messages between the ranks of this machine cost."""

import math
from typing import TYPE_CHECKING

import click

from ._options import examples, json_option, output_option, seed_option
from ._output import emit_json, note, progress, table, text
from ._ranks import (
    DEFAULT_RANKS,
    chosen_backend,
    is_speaker,
    launcher_of,
    loopback_option,
    rank_options,
    world_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from collsyn.model.profile import Estimate, LinkFit, Profile
    from collsyn.model.topology import Topology

    Update = Callable[[float], None]

DEFAULT_FILE = "collsyn-out/profile.yaml"
# Pairs that are listed one by one; of more only the spread is shown.
SHOWN_PAIRS = 56
SHOWN_BENT = 5


@click.command(
    "profile",
    epilog=examples(
        "collsyn profile --ranks 4 --quick",
        "collsyn profile --ranks 8 -o box.yaml --name box",
        "collsyn profile --emulate dgx1 -o dgx1.yaml",
        "collsyn profile --backend cuda",
    ),
)
@rank_options
@loopback_option()
@click.option("--quick", is_flag=True, help="Fewer sizes and repeats.")
@click.option(
    "--emulate",
    metavar="TOPO",
    help="Measure TOPO, whose links are emulated, in place of this machine; takes minutes.",
)
@output_option("Profile to write; any command takes it as a topology.", default=DEFAULT_FILE)
@click.option("--name", default=None, metavar="NAME", help="Name of the machine in the file.  [default: host, gpus]")
@seed_option()
@json_option()
def command(
    backend: str,
    ranks: int | None,
    launcher: str | None,
    mpirun: str | None,
    loopback: int | None,
    quick: bool,
    emulate: str | None,
    output: str,
    name: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure latency and bandwidth between all ordered pairs of ranks, and fit the time model.

    Every pair is timed alone, at several sizes, in an order shuffled with the seed; the bytes are
    checked first. Then pairs run together, which shows the links that they share, and all ranks
    send to all others at once. The profile holds no host's or user's name.
    """
    from collsyn.errors import InputError
    from collsyn.files import require_writable
    from collsyn.model.profile import profile_document, write_profile
    from collsyn.topology.resolve import load_topology

    where = chosen_backend(backend, loopback, emulate, needed=ranks or 2)
    how = launcher_of(where, launcher, mpirun, loopback)
    machine = load_topology(emulate) if emulate else None
    if machine is not None and ranks not in (None, machine.num_ranks):
        raise InputError(f"ranks: is {ranks}; topology {machine.name} has {machine.num_ranks}")
    num_ranks = loopback or ranks or world_size(how) or _default_ranks(where, machine)
    if num_ranks < 2:
        raise InputError("ranks: is 1; expected at least 2, for there is a link between two")
    speaks = is_speaker(how)
    if speaks:
        require_writable(output)
    with progress(f"measuring {num_ranks * (num_ranks - 1)} pairs of ranks", 1.0) as update:
        if where == "cuda":
            profile = _of_gpus(num_ranks, how, loopback is not None, quick, seed, name, update)
        else:
            profile = _of_host(num_ranks, how, machine, quick, seed, name, update)
    if not speaks:
        return
    write_profile(profile, output)
    if as_json:
        emit_json({"file": output, **profile_document(profile)})
    else:
        _show(profile)
        text(f"wrote {output}")
    _warn(profile)


def _default_ranks(where: str, machine: "Topology | None") -> int:
    if where == "cuda":
        from collsyn.cuda.availability import num_gpus

        return num_gpus()
    return machine.num_ranks if machine else DEFAULT_RANKS


def _of_host(
    num_ranks: int, how: str, machine: "Topology | None", quick: bool, seed: int, name: str | None, update: "Update"
) -> "Profile":
    from collsyn.profiling.host import EMULATED, EMULATED_QUICK, QUICK, THOROUGH, profile_host

    effort = ((EMULATED, EMULATED_QUICK) if machine else (THOROUGH, QUICK))[quick]
    name = name or (f"{machine.name} emulated" if machine else "host")
    return profile_host(num_ranks, effort, how, seed, name, on_progress=update, emulate=machine)


def _of_gpus(
    num_ranks: int, how: str, loopback: bool, quick: bool, seed: int, name: str | None, update: "Update"
) -> "Profile":
    from collsyn.bench.job import HERE
    from collsyn.cuda.cupy_driver import CupyDriver
    from collsyn.profiling.gpu import QUICK, THOROUGH, profile_gpu

    driver = CupyDriver() if how == HERE else None
    name = name or ("loopback" if loopback else "gpus")
    return profile_gpu(driver, num_ranks, QUICK if quick else THOROUGH, how, loopback, seed, name, update)


def _show(profile: "Profile") -> None:
    links = profile.links
    rows = [
        (
            f"{link.src}->{link.dst}",
            *_scaled(link.alpha_s),
            *_bandwidths(link.beta_s_per_byte),
            link.overhead_s.value * 1e6,
            f"{100 * link.residual:.0f}%",
        )
        for link in (links if len(links) <= SHOWN_PAIRS else _extremes(links))
    ]
    shown = "" if len(links) <= SHOWN_PAIRS else f" (of {len(links)} pairs those of least and most alpha)"
    columns = ("pair", "alpha us", "95% interval", "GB/s", "95% interval", "overhead us", "off the line")
    table(f"{profile.name}: {profile.num_ranks} {profile.backend} ranks, each pair alone{shown}", columns, rows)
    for rank, port in enumerate(profile.ports):
        if rank == 0 or port != profile.ports[rank - 1]:
            rate, more_us = 1e-9 / port.beta_s_per_byte.value, port.alpha_s.value * 1e6
            line = "" if port.linear else f"; {_by_working_set(profile)} GB/s by the bytes worked on"
            text(
                f"All ranks at once: each sends {rate:.3g} GB/s, and a message takes {more_us:.3g} us longer "
                f"({100 * port.residual:.0f}% off the line{line})"
            )
    _show_sharing(profile)
    if profile.reduce_s_per_byte:
        beyond = " beyond moving their bytes" if profile.ports else ""
        text(f"Reductions: {1e-9 / profile.reduce_s_per_byte:.3g} GB/s by each{beyond}, all at once")
    repeats, outliers = (sum(getattr(link, name) for link in links) for name in ("repeats", "outliers"))
    if repeats:
        first = max(links, key=lambda link: link.warm_up)
        text(
            f"{outliers} of {repeats} repeats took half as long again as the median or more; the first repeat took "
            f"{max(first.warm_up, 0.0):.0%} longer at most ({first.src}->{first.dst})"
        )


def _by_working_set(profile: "Profile") -> str:
    """Range of the rates that ports have."""
    rates = [rate for points in profile.topology().working_set_rates for _, rate in points]
    return f"{min(rates, default=0) / 1e9:.3g} to {max(rates, default=0) / 1e9:.3g}"


def _show_sharing(profile: "Profile") -> None:
    from collsyn.model.profile import ranks_text

    full = [one for one in profile.shared if one.full]
    rows = [
        (
            f"{'out of' if one.out else 'into'} {ranks_text(one.ranks)}",
            *_bandwidths(one.beta_s_per_byte),
            one.full,
        )
        for one in full
    ]
    if rows:
        pairs = sum(link.shares for link in profile.links)
        table(
            f"{len(rows)} shared links, of {pairs} pairs", ("link", "GB/s", "95% interval", "runs at the limit"), rows
        )
    elif "joint_runs" in profile.method:
        text(f"No two pairs share a link ({profile.method['joint_runs']} joint runs)")
    relayed = [f"{link.src}->{link.dst} by {link.via}" for link in profile.links if link.via is not None]
    if relayed:
        more = f" and {len(relayed) - SHOWN_BENT} more" if len(relayed) > SHOWN_BENT else ""
        text(f"Relayed, without a link of their own: {', '.join(relayed[:SHOWN_BENT])}{more}")


def _extremes(links: "tuple[LinkFit, ...]") -> "list[LinkFit]":
    ascending = sorted(links, key=lambda link: link.alpha_s.value)
    return [*ascending[:3], *ascending[-3:]]


def _scaled(alpha: "Estimate") -> tuple[float, str]:
    return alpha.value * 1e6, f"{alpha.low * 1e6:.3g} .. {alpha.high * 1e6:.3g}"


def _bandwidths(beta: "Estimate") -> tuple[float, str]:
    return 1e-9 / beta.value, f"{1e-9 / beta.high:.3g} .. {1e-9 / beta.low:.3g}"


def _warn(profile: "Profile") -> None:
    """Say which pairs no straight line describes, by how much, and at which size."""
    from collsyn.profiling.fit import furthest_point
    from collsyn.units import format_size

    bent = [link for link in profile.links if not link.linear]
    for link in bent[:SHOWN_BENT]:
        found = furthest_point(link.points, link.alpha_s.value, link.beta_s_per_byte.value)
        size, off = found if found is not None else (0, math.nan)
        how = "longer" if off > 0 else "shorter"
        what = f"{format_size(size)} took {abs(off):.0%} {how} than alpha + n beta"
        note(f"{link.src}->{link.dst} is no straight line: {what}")
    if len(bent) > SHOWN_BENT:
        note(f"... and {len(bent) - SHOWN_BENT} more pairs")
    if profile.method.get("unexplained"):
        note(f"{profile.method['unexplained']} times a pair was slowed by others, and no tree of shared links says why")
