"""Reads MSCCL XML into a program, with the line of everything."""

import re
from collections.abc import Iterator

from collsyn.errors import InputError
from collsyn.export.msccl import COLLECTIVES, MAX_ATTRIBUTES, MAX_CHILDREN, MAX_TEXT, Block, Gpu, Program, Step
from collsyn.export.xml_text import Element, parse_xml

# Longer numbers are slips; shorter ones keep arithmetic exact.
_NUMBER = re.compile(r"-?[0-9]{1,15}")
# Chunks of all GPUs together.
_MAX_CHUNKS = 1 << 20


def read_program(raw: bytes, path: str) -> Program:
    """The program of a file; raises InputError that names file, line and attribute.

    Only what cannot be understood is refused here: missing attributes, numbers that are none, unknown collectives.
    Whether the program makes sense is for `msccl_check`. Elements that the format does not know are skipped, as the
    runtimes do.
    """
    root = parse_xml(raw, path)
    if root.name != "algo":
        raise InputError(f"{path}:{root.line}: is <{root.name}>; expected <algo ...>, as in MSCCL XML")
    read = _Attributes(path)
    coll = read.text(root, "coll")
    kind = COLLECTIVES.get(coll)
    if kind is None:
        known = ", ".join(sorted(COLLECTIVES))
        raise InputError(
            f"{path}:{root.line}: coll is {coll!r}, whose result is not known here; expected one of {known}"
        )
    in_place = read.number(root, "inplace") != 0
    out_of_place = read.number(root, "outofplace", int(not in_place)) != 0
    gpus = tuple(read.gpu(child) for child in root.children if child.name == "gpu")
    count = read.number(root, "ngpus")
    if count != len(gpus) or sorted(gpu.number for gpu in gpus) != list(range(count)):
        raise InputError(
            f"{path}:{root.line}: ngpus is {count}, and there are {len(gpus)} elements <gpu>; "
            "expected one for each id from 0 to ngpus - 1"
        )
    num_chunks = read.number(root, "nchunksperloop")
    if not 1 <= num_chunks * count <= _MAX_CHUNKS:
        raise InputError(
            f"{path}:{root.line}: nchunksperloop is {num_chunks}; expected 1 to {_MAX_CHUNKS // max(count, 1)}"
        )
    return Program(
        name=root.attributes.get("name", ""),
        coll=coll,
        collective=kind,
        protocol=read.text(root, "proto"),
        num_channels=read.number(root, "nchannels"),
        num_chunks=num_chunks,
        in_place=in_place,
        out_of_place=out_of_place,
        min_bytes=read.number(root, "minBytes", 0),
        max_bytes=read.number(root, "maxBytes", 0),
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.number)),
        given=frozenset(root.attributes),
        quirks=tuple(_quirks(raw, root)),
        line=root.line,
    )


def _quirks(raw: bytes, root: Element) -> Iterator[tuple[int, str]]:
    """Lines that the runtimes' own parsers stumble over although they are XML, and why."""
    if b"<?" in raw:
        yield 1, "has a declaration <?...?>, which the readers do not know"
    waiting = [root]
    while waiting:
        element = waiting.pop()
        waiting += element.children
        if len(element.attributes) > MAX_ATTRIBUTES:
            yield element.line, f"has {len(element.attributes)} attributes; the readers keep {MAX_ATTRIBUTES}"
        for key, value in element.attributes.items():
            if max(len(key), len(value)) > MAX_TEXT:
                yield element.line, f"has an attribute of more than {MAX_TEXT} characters"
        if len(element.children) > MAX_CHILDREN:
            yield element.line, f"has {len(element.children)} elements in it; the readers crash beyond {MAX_CHILDREN}"


class _Attributes:
    """Values of attributes, and the elements made of them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def text(self, element: Element, key: str) -> str:
        """A required attribute."""
        if key not in element.attributes:
            raise InputError(f"{self._path}:{element.line}: <{element.name}> has no {key}; the readers require it")
        return element.attributes[key]

    def number(self, element: Element, key: str, default: int | None = None) -> int:
        """A whole number, required if there is no default."""
        if default is not None and key not in element.attributes:
            return default
        value = self.text(element, key)
        if _NUMBER.fullmatch(value) is None:
            shown = value if len(value) <= 20 else f"{value[:20]}..."
            raise InputError(f"{self._path}:{element.line}: {key} is {shown!r}; expected a whole number")
        return int(value)

    def gpu(self, element: Element) -> Gpu:
        """A GPU with its thread blocks in the order of their ids."""
        return Gpu(
            input_chunks=self.number(element, "i_chunks"),
            output_chunks=self.number(element, "o_chunks"),
            scratch_chunks=self.number(element, "s_chunks"),
            blocks=tuple(
                sorted(
                    (self.block(child) for child in element.children if child.name == "tb"),
                    key=lambda block: block.number,
                )
            ),
            number=self.number(element, "id"),
            line=element.line,
        )

    def block(self, element: Element) -> Block:
        """A thread block with its steps in the order of the file."""
        return Block(
            send=self.number(element, "send"),
            recv=self.number(element, "recv"),
            channel=self.number(element, "chan"),
            steps=tuple(self.step(child) for child in element.children if child.name == "step"),
            number=self.number(element, "id"),
            line=element.line,
        )

    def step(self, element: Element) -> Step:
        """One step."""
        return Step(
            op=self.text(element, "type"),
            src_buffer=self.text(element, "srcbuf"),
            src_offset=self.number(element, "srcoff"),
            dst_buffer=self.text(element, "dstbuf"),
            dst_offset=self.number(element, "dstoff"),
            count=self.number(element, "cnt"),
            dep_block=self.number(element, "depid"),
            dep_step=self.number(element, "deps"),
            has_dep=self.number(element, "hasdep") != 0,
            number=self.number(element, "s"),
            line=element.line,
        )
