/* Runs one rank's channels of a plan on shared memory.
 *
 * All addresses are those of this process; which of them lie in a peer's arena does not matter here. One thread runs
 * all channels in turn: a channel goes on until it ends or waits for a flag that is not yet raised. When all of them
 * wait, the thread polls a few times and then sleeps on its doorbell, a futex that signallers ring if it says that it
 * sleeps. */

#define _GNU_SOURCE
#include "job.h"

#include "emulate.h"
#include "proxy.h"

static int has_answers(const job *j, int64_t c) {
    return __atomic_load_n(&j->answered[c], __ATOMIC_ACQUIRE) >= j->asked[c];
}

static int can_go_on(const job *j, int64_t c, uint64_t base) {
    const instruction *i = &j->instructions[j->next[c]];
    switch (i->kind) {
    case WAIT: return raised(i, base);
    case AWAIT: return has_answers(j, c);
    case SEND:
    case SEND_DIRECT:
    case RAISE:
    case FETCH: return has_room(j->proxy);
    default: return 1;
    }
}

static int any_can_go_on(const void *waiting, uint64_t base) {
    const job *j = (const job *)waiting;
    for (int64_t c = 0; c < j->num_channels; c++)
        if (j->next[c] < j->end[c] && can_go_on(j, c, base)) return 1;
    return 0;
}

/* Hands an instruction to the proxy; 0 where it has no room now. */
static int post_far(const job *j, int64_t c, const instruction *i, uint64_t base) {
    static const uint32_t kinds[] = {[SEND] = PUT, [SEND_DIRECT] = PUT, [RAISE] = RAISE_FLAG, [FETCH] = ASK};
    if (!has_room(j->proxy)) return 0;
    letter l = {.kind = kinds[i->kind], .region = (uint32_t)j->region, .generation = j->generation};
    l.is_direct = i->kind == SEND_DIRECT;
    l.place = (uint64_t)(i->kind == FETCH ? i->src : i->dst);
    l.address = (uint64_t)(i->kind == FETCH ? i->dst : i->src);
    l.count = (uint64_t)i->count;
    l.value = base + i->value;
    l.counter = (uint64_t)&j->answered[c];
    j->asked[c] += i->kind == FETCH || i->kind == SEND_DIRECT;
    post(j->proxy, (int64_t)i->src2, l, i->kind == SEND ? i->src : NULL);
    return 1;
}

/* Runs a channel to its next wait, or to its second move or reduction; the instruction it then stands at. Channels that
 * take turns in this way work on the same piece one after the other, while it is in the cache. */
static int64_t advance(const job *j, int64_t c, int64_t at, int64_t end, uint64_t base) {
    for (int worked = 0; at < end; at++) {
        const instruction *i = &j->instructions[at];
        switch (i->kind) {
        case SIGNAL:
            __atomic_store_n((uint64_t *)i->dst, base + i->value, __ATOMIC_RELEASE);
            collsyn_ring((control *)i->src);
            break;
        case WAIT:
            if (!raised(i, base)) return at;
            break;
        case AWAIT:
            if (!has_answers(j, c)) return at;
            break;
        case SEND:
        case SEND_DIRECT:
        case RAISE:
        case FETCH:
            if (!post_far(j, c, i, base)) return at;
            break;
        default:
            if (worked++) return at;
            work(j, i);
        }
    }
    return at;
}

/* Goes on with a call whose flags count from `base`. DONE, or ABORTED, or STALLED after `slice_ns` in which no channel
 * could go on: the caller then looks after its peers and its own time limit, and calls again. */
int collsyn_run(job *j, uint64_t base, int64_t slice_ns) {
    int64_t idle = 0, deadline = 0;
    for (;;) {
        int left = 0, progressed = 0;
        for (int64_t c = 0; c < j->num_channels; c++) {
            int64_t at = j->next[c];
            if (at == j->end[c]) continue;
            j->next[c] = advance(j, c, at, j->end[c], base);
            progressed |= j->next[c] != at;
            left |= j->next[c] < j->end[c];
        }
        if (!left) return DONE;
        if (__atomic_load_n(&j->own->aborted, __ATOMIC_ACQUIRE)) return ABORTED;
        if (progressed) {
            idle = deadline = 0;
            continue;
        }
        if (++idle < j->polls) {
            relax();
            continue;
        }
        int64_t now = now_ns();
        if (!deadline) deadline = now + slice_ns;
        if (now >= deadline) return STALLED;
        sleep_until_rung(j->own, any_can_go_on, j, base, deadline - now);
        idle = 0;
    }
}

/* Moves, reductions and bookings by themselves. */
int64_t collsyn_book(link_book *link, int64_t from, int64_t need) { return book(link, from, need); }

void collsyn_copy(void *dst, const void *src, int64_t count, int64_t stream) { copy(dst, src, count, stream != 0); }

void collsyn_reduce(int64_t dtype, int64_t op, void *dst, const void *src, const void *src2, int64_t count) {
    REDUCE_KERNELS[dtype][op](dst, src, src2, count);
}

void collsyn_divide(int64_t dtype, void *data, int64_t count, int64_t divisor) {
    DIVIDE_KERNELS[dtype](data, count, divisor);
}
