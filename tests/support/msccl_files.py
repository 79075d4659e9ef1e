"""MSCCL XML for tests: written by hand, and broken on purpose."""

import copy
import xml.etree.ElementTree as ET

NOTHING = 'depid="-1" deps="-1" hasdep="0"'


def step(op, src="i:0", dst="o:0", cnt=1, dep=None, tells=False):
    """The attributes of a step but for its number."""
    (srcbuf, srcoff), (dstbuf, dstoff) = src.split(":"), dst.split(":")
    block, at = dep if dep is not None else (-1, -1)
    return {
        "type": op,
        "srcbuf": srcbuf,
        "srcoff": srcoff,
        "dstbuf": dstbuf,
        "dstoff": dstoff,
        "cnt": str(cnt),
        "depid": str(block),
        "deps": str(at),
        "hasdep": str(int(tells)),
    }


def nop(dep):
    """A step that only waits."""
    return step("nop", "i:-1", "o:-1", 0, dep)


def algo(coll, gpus, chunks, proto="Simple", **attributes):
    """A file: per GPU ((i, o, s chunks), [(send, recv, chan, [steps])])."""
    channels = 1 + max(chan for _, blocks in gpus for _, _, chan, _ in blocks)
    head = {"name": "test", "proto": proto, "nchannels": channels, "nchunksperloop": chunks, "ngpus": len(gpus)}
    head |= {"coll": coll, "inplace": 0, "outofplace": 1, "minBytes": 0, "maxBytes": 0, **attributes}
    root = ET.Element("algo", {key: str(value) for key, value in head.items()})
    for g, (counts, blocks) in enumerate(gpus):
        sizes = dict(zip(("i_chunks", "o_chunks", "s_chunks"), map(str, counts), strict=True))
        gpu = ET.SubElement(root, "gpu", {"id": str(g), **sizes})
        for b, (send, recv, chan, steps) in enumerate(blocks):
            tb = ET.SubElement(gpu, "tb", {"id": str(b), "send": str(send), "recv": str(recv), "chan": str(chan)})
            for s, attributes_of_step in enumerate(steps):
                ET.SubElement(tb, "step", {"s": str(s), **attributes_of_step})
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def exchange(n=2, proto="Simple"):
    """Allgather: everybody sends its chunk to everybody, one thread block a peer."""
    gpus = []
    for g in range(n):
        others = [(g + k) % n for k in range(1, n)]
        blocks = [(p, p, 0, [step("s", "i:0"), step("r", "o:0", f"o:{p}")]) for p in others]
        gpus.append(((1, n, 0), [*blocks, (-1, -1, 0, [step("cpy", "i:0", f"o:{g}")])]))
    return algo("allgather", gpus, n, proto)


def ring_allreduce(n=4, proto="Simple"):
    """In place and out of place, fused: one thread block receives and sends; chunks go round twice."""
    gpus = []
    for g in range(n):
        gpus.append(((n, n, 0), [((g + 1) % n, (g - 1) % n, 0, _ring_order(n, g))]))
    return algo("allreduce", gpus, n, proto, inplace=1)


def _ring_order(n, g):
    """Steps of a ring: chunk c is summed up on its way to GPU c - 1, and goes round once more."""
    steps = [step("s", f"i:{g}")]
    for k in range(1, n - 1):
        steps.append(step("rrs", f"i:{(g - k) % n}"))
    full = (g - n + 1) % n
    steps.append(step("rrcs", f"i:{full}", f"o:{full}"))
    for k in range(1, n - 1):
        steps.append(step("rcs", "o:0", f"o:{(full - k) % n}"))
    steps.append(step("r", "o:0", f"o:{(full - n + 1) % n}"))
    return steps


def pairs_allreduce(n=4, proto="LL"):
    """In place only: everybody sends to everybody, adds up its own chunk out of scratch, and sends the sum."""
    gpus = []
    for g in range(n):
        others = [p for p in range(n) if p != g]
        blocks = []
        for k, p in enumerate(others):
            steps = [step("s", f"i:{p}", "s:0"), step("r", "s:0", f"s:{k}", tells=True)]
            if k == 0:
                steps += [nop((b, 1)) for b in range(1, len(others) - 1)]
                steps += [step("re", "s:0", f"i:{g}", dep=(len(others) - 1, 1))]
                steps += [step("re", f"s:{j}", f"i:{g}", tells=j == len(others) - 1) for j in range(1, len(others))]
                steps += [step("s", f"i:{g}", f"i:{g}"), step("r", f"i:{p}", f"i:{p}")]
            else:
                steps += [step("s", f"i:{g}", f"i:{g}", dep=(0, 2 * len(others) - 1)), step("r", f"i:{p}", f"i:{p}")]
            blocks.append((p, p, 0, steps))
        gpus.append(((n, 0, n - 1), blocks))
    return algo("allreduce", gpus, n, proto, inplace=1, outofplace=0)


BY_HAND = {"exchange": exchange(3), "ring": ring_allreduce(), "pairs": pairs_allreduce()}

MUTATIONS = (
    "dependency dropped",
    "hasdep cleared",
    "second thread block on a channel",
    "steps swapped",
    "wrong offset",
    "count past the buffer",
    "wrong peer",
    "wait missing",
    "chunk removed",
    "reduction doubled",
    "wrong channel",
    "operation changed",
)


def mutant(text, kind, rng):
    """The file with one thing wrong, or None where it has nothing of that kind."""
    root = copy.deepcopy(ET.fromstring(text))
    gpu = rng.choice(root.findall("gpu"))
    blocks = gpu.findall("tb")
    steps = [(tb, item) for tb in blocks for item in tb.findall("step")]

    def pick(fits):
        fitting = [(tb, item) for tb, item in steps if fits(item)]
        return rng.choice(fitting) if fitting else (None, None)

    if kind == "dependency dropped":
        _, item = pick(lambda item: item.get("depid") != "-1" and item.get("type") != "nop")
        if item is None:
            return None
        item.set("depid", "-1")
        item.set("deps", "-1")
    elif kind == "hasdep cleared":
        _, item = pick(lambda item: item.get("hasdep") == "1")
        if item is None:
            return None
        item.set("hasdep", "0")
    elif kind == "second thread block on a channel":
        talking = [tb for tb in blocks if tb.get("send") != "-1" or tb.get("recv") != "-1"]
        tb = rng.choice(talking)
        moving = [item for item in tb.findall("step") if item.get("type") != "nop"]
        item = rng.choice(moving)
        _remove(gpu, tb, item)
        twin = ET.SubElement(gpu, "tb", {**tb.attrib, "id": str(len(blocks))})
        item.set("hasdep", "0")
        twin.append(item)
        item.set("s", "0")
    elif kind == "steps swapped":
        tb = rng.choice(blocks)
        items = tb.findall("step")
        if len(items) < 2:
            return None
        k = rng.randrange(len(items) - 1)
        a, b = items[k].attrib.copy(), items[k + 1].attrib.copy()
        items[k].attrib.update({**b, "s": a["s"]})
        items[k + 1].attrib.update({**a, "s": b["s"]})
    elif kind in ("wrong offset", "count past the buffer"):
        _, item = pick(lambda item: item.get("type") != "nop")
        side = rng.choice(("src", "dst"))
        if kind == "wrong offset":
            item.set(f"{side}off", str(int(item.get(f"{side}off")) + rng.choice((-1, 1))))
        else:
            item.set("cnt", str(int(item.get("cnt")) + rng.choice((1, 2))))
    elif kind in ("wrong peer", "wrong channel"):
        tb = rng.choice(blocks)
        key = "chan" if kind == "wrong channel" else rng.choice(("send", "recv"))
        if kind == "wrong peer" and tb.get(key) == "-1":
            return None
        most = int(root.get("nchannels")) if key == "chan" else int(root.get("ngpus"))
        others = [str(value) for value in range(most + (key == "chan")) if str(value) != tb.get(key)]
        tb.set(key, rng.choice(others))
    elif kind == "wait missing":
        tb, item = pick(lambda item: item.get("type") == "nop")
        if item is None:
            return None
        _remove(gpu, tb, item)
    elif kind == "chunk removed":
        tb, item = pick(lambda item: item.get("type") != "nop")
        if int(item.get("cnt")) > 1:
            item.set("cnt", str(int(item.get("cnt")) - 1))
        else:
            _remove(gpu, tb, item)
    elif kind == "reduction doubled":
        tb, item = pick(lambda item: item.get("type") in ("re", "rrc", "rrcs", "rrs"))
        if item is None:
            return None
        if item.get("type") == "re":
            twin = copy.deepcopy(item)
            tb.insert(tb.findall("step").index(item), twin)
            twin.set("hasdep", "0")
            _renumber(gpu, tb, int(item.get("s")), 1)
        else:
            at = tb.findall("step").index(item)
            twin = ET.Element("step", {**step("re", _from(item), _to(item)), "s": "0"})
            tb.insert(at, twin)
            _renumber(gpu, tb, int(item.get("s")), 1)
    elif kind == "operation changed":
        same = {"r": "rrc", "rrc": "r", "rcs": "rrcs", "rrcs": "rcs", "rrs": "rcs", "re": "cpy", "cpy": "re"}
        _, item = pick(lambda item: item.get("type") in same)
        if item is None:
            return None
        item.set("type", same[item.get("type")])
    return ET.tostring(root, encoding="unicode")


def _from(item):
    return f"{item.get('srcbuf')}:{item.get('srcoff')}"


def _to(item):
    return f"{item.get('dstbuf')}:{item.get('dstoff')}"


def _remove(gpu, tb, item):
    at = int(item.get("s"))
    tb.remove(item)
    _renumber(gpu, tb, at + 1, -1)


def _renumber(gpu, tb, first, by):
    """Number the steps of a thread block anew; dependencies on steps from `first` on keep to their steps."""
    for number, item in enumerate(tb.findall("step")):
        item.set("s", str(number))
    for item in gpu.iter("step"):
        if item.get("depid") == tb.get("id") and int(item.get("deps")) >= first:
            item.set("deps", str(int(item.get("deps")) + by))
