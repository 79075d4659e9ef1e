/* What a launch is given. Python has the same records in layout.py. */

#ifndef COLLSYN_LAUNCH_CUH
#define COLLSYN_LAUNCH_CUH

#include "primitives.cuh"

namespace collsyn {

enum : u32 { NOP, MOVE, REDUCE, SIGNAL, WAIT };
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
};

struct division {
    u32 slot, divisor;
    u64 start, count;
};

struct state {
    u64 base; /* flags of this call count from it */
    u32 finished, reserved;
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
    u64 rise, limit_ns;
    u32 num_channels, num_ranks, num_divisions, blocks_per_channel, dtype, op;
};

}  // namespace collsyn

#endif
