/* For kernels of one's own: put, get, signal, wait and packets between ranks (docs/cuda.md, examples/scaled_allreduce.cu).
 *
 * `#include "collsyn.cuh"` in a source that `GpuJob.module_of` compiles, take an `endpoint` by value, and pass it
 * `Endpoints.argument(rank)`. All threads of a block call what has a `thread &`; threads of one or several blocks share
 * what has a `worker`. Launches that wait for each other must be resident at once. */

#ifndef COLLSYN_COLLSYN_CUH
#define COLLSYN_COLLSYN_CUH

#include "primitives.cuh"

namespace collsyn {

/* A rank's view of memory that all ranks have alike: `data[p]` is that of rank p, `flags[p]` its flags, 64 bytes apart.
 * `base` is a count that the host raises from call to call, so that flags need never be cleared. */
struct endpoint {
    u8 *const *data;
    u8 *const *flags;
    u32 *failed;         /* not 0 once a wait of this rank was given up */
    u64 base, limit_ns;
    u32 rank, num_ranks;
};

enum : u64 { FLAG_BYTES = 64 };

COLLSYN_FN u64 *flag_of(const endpoint &e, u32 rank, u32 flag) { return (u64 *)(e.flags[rank] + flag * FLAG_BYTES); }

/* Bytes from this rank's memory to a peer's, and back. No order: signal, or wait, first. */
COLLSYN_FN void put_to(const endpoint &e, worker w, u32 peer, u64 offset, const void *own, u64 count) {
    put(w, e.data[peer] + offset, own, count);
}
COLLSYN_FN void get_from(const endpoint &e, worker w, void *own, u32 peer, u64 offset, u64 count) {
    get(w, own, e.data[peer] + offset, count);
}

/* A peer's flag becomes base + value; whoever waits for that sees all that this block's threads put before. */
COLLSYN_FN void signal_to(const endpoint &e, thread &t, u32 peer, u32 flag, u64 value) {
    signal(t, flag_of(e, peer, flag), e.base + value);
}

/* Until this rank's own flag is at least base + value. Whether it came in time: where not, `failed` says so to the host,
 * and the kernel should end. */
COLLSYN_FN bool wait_for(const endpoint &e, thread &t, u32 flag, u64 value) {
    bool came = wait(t, flag_of(e, e.rank, flag), e.base + value, patience{e.limit_ns, nullptr});
    if (!came && t.index == 0) store_release(e.failed, flag + 1);
    return came;
}

}  // namespace collsyn

#endif
