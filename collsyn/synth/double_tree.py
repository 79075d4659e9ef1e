"""Double binary trees: two trees, each carrying half of the data, in which no rank but the root passes on in both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import Baseline, Message, from_rounds, quickest, without_hop
from collsyn.synth.problem import Problem
from collsyn.synth.transform import by_reversal, compose

PIECES = (2, 4, 8, 16, 32, 64, 128, 256)

# A node of a tree and the one that sends to it; the root of the data is 0, the others are 1 .. n-1.
Parents = dict[int, int]


class DoubleBinaryTree(Baseline):
    """Broadcast in a pipeline of pieces, even ones along one tree, odd ones along the other; reduce by reversal.

    Sanders, Speck, Traeff (Parallel Computing 35, 2009): every rank receives half of the pieces in each tree and
    passes on those of at most one, two messages each, so that with one port a rank C pieces of c bytes take about
    (C + 2 log2 N)(alpha + beta c). The edges of the trees are coloured so that none sends or receives two pieces at
    once. Allreduce as reduce, then broadcast, piece by piece.
    """

    name = "double-binary-tree"
    builds = frozenset({"broadcast", "allreduce"})

    def obstacle(self, problem: Problem) -> str | None:
        """Needs a hop along every edge of both trees, for an allreduce in both directions."""
        if problem.kind == "allreduce" and len({len(group) for group in problem.members}) > 1:
            return "needs process groups of equal size"
        edges = [
            (order[parent], order[child])
            for order in _orders(problem)
            for tree in both_trees(len(order))
            for child, parent in tree.items()
        ]
        if problem.kind == "allreduce":
            edges += [(b, a) for a, b in edges]
        return without_hop(problem.topology, edges)

    def build(self, problem: Problem) -> Schedule:
        """The quickest number of pieces."""
        if problem.kind == "broadcast":
            return quickest(problem, PIECES, _broadcast)
        ranks = len(problem.members[0])
        if problem.chunks_per_rank is not None:
            return _allreduce(problem, pieces=ranks * problem.chunks_per_rank)
        # Fewer pieces than ranks are messages of several chunks.
        found, in_vain = [], 0
        for pieces in PIECES:
            chunks = -(-pieces // ranks)
            found.append(quickest(problem, (chunks,), partial(_allreduce, pieces=pieces)))
            best = min(found, key=lambda schedule: schedule.finish_s)
            in_vain = 0 if best is found[-1] else in_vain + 1
            if in_vain == 2:
                break
        return best


def both_trees(n: int) -> tuple[Parents, Parents]:
    """Two binary trees of the nodes 1 .. n-1 below the root 0, of height ceil(log2 n) at most.

    The first is in order, so that odd nodes are its leaves; the second is the first one mirrored, or shifted by one
    where that would keep the leaves, so that its leaves are the even nodes (and for an even n the last one).
    """
    first = _in_order(n)
    image = {node: n - node if n % 2 else node % (n - 1) + 1 for node in range(1, n)} | {0: 0}
    return first, {image[child]: image[parent] for child, parent in first.items()}


def _in_order(n: int) -> Parents:
    parents: Parents = {}
    pending = [(1, n - 1, 0)]
    while pending:
        low, high, parent = pending.pop()
        if low > high:
            continue
        # The number with most zeros at its end: what differs between low - 1 and high begins at its last one.
        bit = ((low - 1) ^ high).bit_length() - 1
        top = high >> bit << bit
        parents[top] = parent
        pending += [(low, top - 1, top), (top + 1, high, top)]
    return parents


def colours(trees: tuple[Parents, Parents]) -> list[dict[int, int]]:
    """0 or 1 for the edge into every node of each tree.

    Edges out of one node differ (the root's: those of both trees), and so do the two edges into one node. Each edge has
    one partner of either kind, so that going from partner to partner meets every edge once.
    """
    children: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for tree, parents in enumerate(trees):
        for child, parent in parents.items():
            children.setdefault((tree if parent else -1, parent), []).append((tree, child))
    sibling: dict[tuple[int, int], tuple[int, int]] = {}
    for group in children.values():
        if len(group) == 2:
            sibling[group[0]], sibling[group[1]] = group[1], group[0]
    found: list[dict[int, int]] = [{}, {}]
    for start in ((tree, child) for tree in (0, 1) for child in sorted(trees[tree])):
        if start[1] in found[start[0]]:
            continue
        pending = [(start, 0)]
        while pending:
            (tree, child), colour = pending.pop()
            if child in found[tree]:
                continue
            found[tree][child] = colour
            pending.append(((1 - tree, child), 1 - colour))
            if (tree, child) in sibling:
                pending.append((sibling[tree, child], 1 - colour))
    return found


@dataclass(frozen=True)
class _Edge:
    """An edge of a tree: it first carries a piece in step `begin`, then in every second one."""

    begin: int
    parent: int
    child: int


def _edges(trees: tuple[Parents, Parents]) -> Iterator[list[_Edge]]:
    """The edges of each tree; a piece leaves a node in the first step of the edge's colour after it has come."""
    for parents, colour in zip(trees, colours(trees), strict=True):
        came = {0: -1}
        edges: list[_Edge] = []
        below: dict[int, list[int]] = {}
        for child, parent in parents.items():
            below.setdefault(parent, []).append(child)
        pending = [0]
        while pending:
            parent = pending.pop()
            for child in below.get(parent, []):
                begin = came[parent] + 1
                came[child] = begin + (begin + colour[child]) % 2
                edges.append(_Edge(came[child], parent, child))
                pending.append(child)
        yield edges


def _orders(problem: Problem) -> list[tuple[int, ...]]:
    """The ranks of every group as the trees number them, the root first."""
    root = problem.root or 0
    return [group[root:] + group[:root] for group in problem.members]


def _broadcast(problem: Problem, pieces: int | None = None) -> Schedule:
    collective = problem.collective()
    rounds = []
    for order in _orders(problem):
        chunks = collective.held_by(order[0]).tolist()
        wanted = min(pieces or len(chunks), len(chunks))
        cuts = [chunks[len(chunks) * i // wanted : len(chunks) * (i + 1) // wanted] for i in range(wanted)]
        rounds.append(_pipeline(order, cuts))
    return from_rounds(problem, collective, rounds)


def _pipeline(order: tuple[int, ...], pieces: Sequence[Sequence[int]]) -> list[list[Message]]:
    """Step by step, the pieces that edges carry; the trees take turns with the pieces."""
    steps: dict[int, list[Message]] = {}
    for tree, edges in enumerate(_edges(both_trees(len(order)))):
        for k, piece in enumerate(pieces[tree::2]):
            for edge in edges:
                message = Message(piece, order[edge.parent], order[edge.child])
                steps.setdefault(edge.begin + 2 * k, []).append(message)
    return [steps[step] for step in sorted(steps)]


def _allreduce(problem: Problem, pieces: int) -> Schedule:
    chunks = problem.chunks_per_rank or 1
    in_all = len(problem.members[0]) * chunks
    broadcast = partial(_broadcast, pieces=pieces)
    first = by_reversal(problem.as_kind("reduce", in_all), broadcast)
    return compose(first, broadcast(problem.as_kind("broadcast", in_all)), problem.collective(chunks))


DOUBLE_BINARY_TREE = DoubleBinaryTree()
