"""Compiles and loads the native executor, as ranks do at first use."""

import contextlib
import io
import json
import os
from typing import Any

from collsyn.runtime.native_loader import cache_folder, native_library


def main() -> dict[str, Any]:
    """Whether it works, what the loader said of it, and whether what was compiled is kept."""
    os.environ["COLLSYN_DEBUG"] = "1"
    with contextlib.redirect_stderr(io.StringIO()) as said:
        works = native_library() is not None
    # A folder that cannot be written is replaced by a temporary one, which ends with the process.
    is_kept = not cache_folder().name.startswith("collsyn-cache-")
    return {"works": works, "said": said.getvalue(), "is_kept": is_kept}


if __name__ == "__main__":
    print(json.dumps(main()))
