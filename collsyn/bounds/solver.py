"""HiGHS without a word on the screen."""

from typing import Any


def quiet_solver() -> Any:
    """A new `highspy.Highs` that prints nothing and works on one core."""
    from highspy import Highs

    class Quiet(Highs):
        """Subscribing to callbacks, which a Highs does at once, prints the licence on standard output."""

        def enableCallbacks(self) -> None:  # noqa: N802
            """Subscribe to none."""

    solver: Any = Quiet()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    return solver
