/* An allreduce and what comes after it in one kernel: every rank puts its input into all others' memory, waits for theirs,
 * and writes scale * sum. One block a rank; for messages whose latency matters. */

#include "collsyn.cuh"

using namespace collsyn;

struct scaled {
    endpoint peers;
    const float *input;
    float *output;
    u64 count;
    float scale;
    u32 reserved;
};

COLLSYN_FN void scaled_allreduce_threads(thread &t, const scaled &s) {
    const endpoint &e = s.peers;
    worker w = worker_of(t);
    /* Two sets of places in turns: a peer may still read those of the call before, but not those of the one before that,
     * for it has signalled since. */
    u64 set = e.base % 2 * e.num_ranks;
    for (u32 step = 0; step < e.num_ranks; step++) {
        u32 peer = (e.rank + step) % e.num_ranks;
        put_to(e, w, peer, (set + e.rank) * s.count * sizeof(float), s.input, s.count * sizeof(float));
        signal_to(e, t, peer, e.rank, 1);
    }
    for (u32 peer = 0; peer < e.num_ranks; peer++)
        if (!wait_for(e, t, peer, 1)) return;
    const float *parts = (const float *)e.data[e.rank] + set * s.count;
    for (u64 i = w.index; i < s.count; i += w.count) {
        float sum = 0;
        for (u32 rank = 0; rank < e.num_ranks; rank++) sum += parts[rank * s.count + i];
        s.output[i] = s.scale * sum;
    }
}

COLLSYN_ENTRY(scaled_allreduce, scaled)
