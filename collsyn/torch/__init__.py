"""The backend `collsyn` of torch.distributed: importing this package registers it.

    import collsyn.torch

    torch.distributed.init_process_group("collsyn")

Imports torch, which nothing else in the library does. Raises InputError where torch is missing or too old.
"""

from collsyn.torch.version import require_torch

require_torch()

from collsyn.torch.register import register  # noqa: E402

register()
