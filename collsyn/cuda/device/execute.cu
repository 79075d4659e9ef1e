/* The two kernels of a call: its channels, and then, where the operation is an average, the divisions. */

#include "divide.cuh"
#include "executor.cuh"

COLLSYN_FN void collsyn_execute_threads(collsyn::thread &t, const collsyn::launch &l) {
    collsyn::run_launch(t, l, [](collsyn::runner &r) { collsyn::interpret(r); });
}

COLLSYN_ENTRY(collsyn_execute, collsyn::launch)
COLLSYN_ENTRY(collsyn_divide, collsyn::launch)
