/* Runs the channels of a plan: the steps that instructions stand for, and the loop that reads them. Kernels made for one
 * plan (specialise.py) call the same steps with constants. */

#ifndef COLLSYN_EXECUTOR_CUH
#define COLLSYN_EXECUTOR_CUH

#include "launch.cuh"

namespace collsyn {

/* A thread at work on a channel: block `share` of those that the channel has. */
struct runner {
    thread &t;
    const launch &l;
    const channel &c;
    u32 number, share;
    worker w;
    u64 base, calls;
    u8 *const *buffers; /* of this call */
};

COLLSYN_FN u8 *place(const runner &r, u32 slot, u64 offset) { return r.buffers[slot] + offset; }

COLLSYN_FN u32 *abort_word(const launch &l, i32 rank) { return (u32 *)l.buffers[SLOTS * rank + CONTROL]; }

COLLSYN_FN patience patience_of(const runner &r) { return patience{r.l.limit_ns, abort_word(r.l, r.c.rank)}; }

/* One thread: says what went wrong, unless somebody has, and ends the waits of all ranks that can be reached. */
COLLSYN_FN void fail(const runner &r, u32 code, u32 row, u64 seen, u64 wanted) {
    report *f = r.l.failure;
    if (!take(&f->claimed)) return;
    f->rank = r.c.rank;
    f->channel = r.c.number;
    f->instruction = (i32)row;
    f->by = (i32)load_acquire(abort_word(r.l, r.c.rank)) - 1;
    f->seen = seen;
    f->wanted = wanted;
    store_release(&f->code, code);
    if (code == ABORTED) return;
    for (u32 rank = 0; rank < r.l.num_ranks; rank++)
        if (u32 *word = abort_word(r.l, (i32)rank)) store_release(word, (u32)r.c.rank + 1);
}

/* All threads of the channel: what any did before, all see behind it. Whether the call goes on. */
COLLSYN_FN bool step_barrier(runner &r, u32 row) {
    if (r.l.blocks_per_channel == 1) {
        meet(r.t);
        return true;
    }
    meet(r.t);
    u32 met = DONE;
    if (r.t.index == 0) {
        met = meet_blocks(&r.l.groups[r.number], r.l.blocks_per_channel, patience_of(r));
        if (met != DONE) fail(r, met, row, 0, 0);
    }
    return !meet_any(r.t, met != DONE);
}

COLLSYN_FN void step_move(const runner &r, u32 dst_slot, u64 dst, u32 src_slot, u64 src, u64 count) {
    copy(r.w, place(r, dst_slot, dst), place(r, src_slot, src), count);
}

COLLSYN_FN void step_reduce(
    const runner &r, u32 dst_slot, u64 dst, u32 src_slot, u64 src, u32 src2_slot, u64 src2, u64 count) {
    u8 *to = place(r, dst_slot, dst), *left = place(r, src_slot, src), *right = place(r, src2_slot, src2);
#ifdef COLLSYN_DTYPE
    reduce<COLLSYN_DTYPE, COLLSYN_OP>(r.w, to, left, right, count);
#else
    reduce_any(r.l.dtype, r.l.op, r.w, to, left, right, count);
#endif
}

/* Of several blocks the last one to come raises the flag: its arrival acquires what the others released with theirs. */
COLLSYN_FN void step_signal(runner &r, u32 at, u32 slot, u64 flag, u64 value) {
    meet(r.t);
    if (r.t.index != 0) return;
    u32 blocks = r.l.blocks_per_channel;
    if (blocks > 1) {
        if (add_acquire_release(&r.l.arrivals[at], 1) != blocks - 1) return;
        store_relaxed(&r.l.arrivals[at], 0);
    }
    raise((u64 *)place(r, slot, flag), r.base + value);
}

/* Every block looks for itself, and so acquires for itself. Whether the call goes on. */
COLLSYN_FN bool step_wait(runner &r, u32 row, u32 slot, u64 flag, u64 value) {
    u32 came = DONE;
    if (r.t.index == 0) {
        const u64 *word = (const u64 *)place(r, slot, flag);
        u64 wanted = r.base + value;
        came = await(patience_of(r), [&] { return !lowered(word, wanted); });
        if (came != DONE) {
            u64 seen = load_relaxed(word);
            fail(r, came, row, seen > r.base ? seen - r.base : 0, value);
        }
    }
    return !meet_any(r.t, came != DONE);
}

/* All threads of a channel of one block, whose accesses before it are over: the proxy is asked for something, and sees what
 * they wrote. Whether the call goes on. */
COLLSYN_FN bool step_ask(runner &r, u32 row, u32 kind, u32 peer, u64 place, u8 *own, u64 count, u64 value) {
    meet(r.t);
    u32 came = DONE;
    if (r.t.index == 0) {
        lane *l = &r.l.lanes[r.number];
        u64 head = load_relaxed(&l->head);
        came = await(patience_of(r), [&] { return head - load_acquire(&l->taken) < LANE_ROOM; });
        if (came == DONE) {
            l->requests[head % LANE_ROOM] = request{kind, peer, place, (u64)own, count, value, {}};
            store_release(&l->head, head + 1);
        } else {
            fail(r, came, row, 0, 0);
        }
    }
    return !meet_any(r.t, came != DONE);
}

COLLSYN_FN bool step_send(runner &r, u32 row, u32 peer, u64 dst, u32 src_slot, u64 src, u64 count, u64 turn) {
    return step_ask(r, row, SEND, peer, dst + r.calls % 2 * turn, place(r, src_slot, src), count, 0);
}

COLLSYN_FN bool step_raise(runner &r, u32 row, u32 peer, u64 flag, u64 value) {
    return step_ask(r, row, RAISE, peer, flag, nullptr, 0, r.base + value);
}

COLLSYN_FN bool step_fetch(runner &r, u32 row, u32 peer, u32 dst_slot, u64 dst, u64 src, u64 count, u64 turn) {
    return step_ask(r, row, FETCH, peer, src + r.calls % 2 * turn, place(r, dst_slot, dst), count, 0);
}

/* Until the proxy has answered so many of what this channel asked for in this call. Whether the call goes on. */
COLLSYN_FN bool step_await(runner &r, u32 row, u64 value) {
    u32 came = DONE;
    if (r.t.index == 0) {
        const u64 *answered = &r.l.lanes[r.number].answered;
        u64 before = r.calls * r.c.asks;
        came = await(patience_of(r), [&] { return !lowered(answered, before + value); });
        if (came != DONE) fail(r, came, row, load_relaxed(answered) - before, value);
    }
    return !meet_any(r.t, came != DONE);
}

COLLSYN_FN void interpret(runner &r) {
    for (u32 at = r.c.begin; at < r.c.end; at++) {
        const instruction i = r.l.instructions[at];
        if (i.barrier && !step_barrier(r, i.row)) return;
        if (i.kind == MOVE) {
            step_move(r, i.dst_slot, i.dst, i.src_slot, i.src, i.count);
        } else if (i.kind == REDUCE) {
            step_reduce(r, i.dst_slot, i.dst, i.src_slot, i.src, i.src2_slot, i.src2, i.count);
        } else if (i.kind == SIGNAL) {
            step_signal(r, at, i.dst_slot, i.dst, i.value);
        } else if (i.kind == WAIT) {
            if (!step_wait(r, i.row, i.dst_slot, i.dst, i.value)) return;
        } else if (i.kind == SEND) {
            if (!step_send(r, i.row, i.src2_slot, i.dst, i.src_slot, i.src, i.count, i.value)) return;
        } else if (i.kind == RAISE) {
            if (!step_raise(r, i.row, i.src2_slot, i.dst, i.value)) return;
        } else if (i.kind == FETCH) {
            if (!step_fetch(r, i.row, i.src2_slot, i.dst_slot, i.dst, i.src, i.count, i.value)) return;
        } else if (i.kind == AWAIT) {
            if (!step_await(r, i.row, i.value)) return;
        }
    }
}

/* A thread's part of a launch; `run(runner)` does its channel. The block that finishes last makes flags count from
 * further up in the next call: the others read the base before they finished. */
template <typename Run>
COLLSYN_FN void run_launch(thread &t, const launch &l, Run run) {
    u32 blocks = l.blocks_per_channel, number = t.block / blocks, share = t.block % blocks;
    runner r{t, l, l.channels[number], number, share, worker_of(t, share, blocks), l.call->base, l.call->calls, l.buffers};
    r.buffers += r.calls % 2 * l.turn_slots;
    run(r);
    meet(t);
    if (t.index != 0) return;
    if (add_acquire_release(&l.call->finished, 1) != l.num_channels * blocks - 1) return;
    l.call->finished = 0;
    l.call->calls++;
    l.call->base += l.rise;
}

}  // namespace collsyn

#endif
