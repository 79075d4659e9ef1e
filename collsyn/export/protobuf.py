"""Writes the wire format of Protocol Buffers: the few kinds of fields that traces need, and no more."""

_VARINT, _BYTES = 0, 2
MAX_UNSIGNED = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A whole number in groups of seven bits, the lowest first; negative ones as complements of 64 bits."""
    value &= MAX_UNSIGNED
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def number(field: int, value: int) -> bytes:
    """A field of an integer, boolean or enumeration type."""
    return varint(field << 3 | _VARINT) + varint(value)


def data(field: int, content: bytes | str) -> bytes:
    """A field of bytes or text, or an inner message that was written already."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | _BYTES) + varint(len(raw)) + raw


def packed(field: int, values: list[int]) -> bytes:
    """A repeated field of integers in one piece; nothing if it is empty."""
    return data(field, b"".join(map(varint, values))) if values else b""


def delimited(message: bytes) -> bytes:
    """A message behind its length, as files of several messages have them."""
    return varint(len(message)) + message
