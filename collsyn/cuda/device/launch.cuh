/* What a launch is given. Python has the same records in layout.py. */

#ifndef COLLSYN_LAUNCH_CUH
#define COLLSYN_LAUNCH_CUH

#include "primitives.cuh"

namespace collsyn {

/* From SEND on they are for ranks in other boxes: `src2_slot` is the rank, and `dst` (of FETCH `src`) a place in its region,
 * in every other call `value` further on; of AWAIT it counts what the channel asked for in this call. Numbers are those of runtime/native/job.h. */
enum : u32 { NOP, MOVE, REDUCE, SIGNAL, WAIT, SEND = 6, RAISE = 8, FETCH, AWAIT };
enum : u32 { SLOTS = 4, CONTROL = 3 };

struct instruction {
    u32 kind;
    u32 barrier; /* the channel's threads meet before it */
    u32 dst_slot, src_slot, src2_slot;
    u32 row;             /* within the channel */
    u64 dst, src, src2;  /* bytes from the slot's begin */
    u64 count;           /* bytes of a move, elements of a reduction */
    u64 value;
};

struct channel {
    u32 begin, end;
    i32 rank, number;
    u32 asks, reserved; /* answers that come for it in a call */
};

/* What a channel asks of the proxy (runtime/native/device.h has the same): in memory of the host. */
enum : u32 { LANE_ROOM = 8 };
struct request {
    u32 kind, peer;
    u64 place, address, count, value, pad[3];
};
struct lane {
    u64 head, pad[7];
    u64 taken, answered, pad2[6];
    request requests[LANE_ROOM];
};

struct division {
    u32 slot, divisor;
    u64 start, count;
};

struct state {
    u64 base; /* flags of this call count from it */
    u32 finished;
    u32 calls; /* before this one */
};

struct report {
    u32 code, claimed;
    i32 rank, channel, instruction, by;
    u64 seen, wanted;
};

struct launch {
    const instruction *instructions;
    const channel *channels;
    u8 *const *buffers;
    const division *divisions;
    state *call;
    group *groups;
    u32 *arrivals;
    report *failure;
    lane *lanes; /* of each channel; nullptr where nothing is asked for */
    u64 rise, limit_ns;
    u32 num_channels, num_ranks, num_divisions, blocks_per_channel, dtype, op;
    u32 turn_slots, reserved; /* so many slots on stand those of every other call; 0: none do */
};

}  // namespace collsyn

#endif
