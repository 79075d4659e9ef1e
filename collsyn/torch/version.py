"""Which torch is needed; must not import it at module level, so that its absence is one clear line."""

from importlib import metadata

from collsyn.errors import InputError

OLDEST = (2, 6)
_INSTALL = "pip install 'collsyn[torch]'"


def require_torch() -> None:
    """Raise InputError unless a torch is there that has what a process group in Python needs."""
    try:
        found = metadata.version("torch")
        import torch.distributed as dist
    except (metadata.PackageNotFoundError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"collsyn.torch: torch cannot be imported ({reason}); {_INSTALL}") from None
    check_version(found)
    if not dist.is_available():
        raise InputError(f"collsyn.torch: torch {found} was built without torch.distributed; {_INSTALL}")


def check_version(found: str) -> None:
    """Raise InputError for a version of torch before OLDEST."""
    numbers = tuple(int(part) for part in found.split("+", maxsplit=1)[0].split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise InputError(f"collsyn.torch: torch {found} is too old; expected {needed} or newer: {_INSTALL}")
