/* What ends an average. It is a launch of its own behind the other one: until then parts of the output may have been
 * passed on as sums. Blocks share every division. */

#ifndef COLLSYN_DIVIDE_CUH
#define COLLSYN_DIVIDE_CUH

#include "launch.cuh"

namespace collsyn {

COLLSYN_FN void divide_any(u32 dtype, worker w, void *data, u64 count, u32 divisor) {
    switch (dtype) {
    case FLOAT32: return divide<FLOAT32>(w, data, count, divisor);
    case FLOAT64: return divide<FLOAT64>(w, data, count, divisor);
    case FLOAT16: return divide<FLOAT16>(w, data, count, divisor);
    case BFLOAT16: return divide<BFLOAT16>(w, data, count, divisor);
    case INT32: return divide<INT32>(w, data, count, divisor);
    case INT64: return divide<INT64>(w, data, count, divisor);
    default: return divide<UINT8>(w, data, count, divisor);
    }
}

}  // namespace collsyn

COLLSYN_FN void collsyn_divide_threads(collsyn::thread &t, const collsyn::launch &l) {
    if (l.failure->code != collsyn::DONE) return;
    for (collsyn::u32 i = 0; i < l.num_divisions; i++) {
        const collsyn::division d = l.divisions[i];
        collsyn::worker w = collsyn::worker_of(t, t.block, t.blocks);
        collsyn::divide_any(l.dtype, w, l.buffers[d.slot] + d.start, d.count, d.divisor);
    }
}

#endif
