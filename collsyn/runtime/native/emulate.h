/* Runs one rank's channels at the pace of an emulated machine (docs/emulation.md).
 *
 * Every channel has a clock: the moment, in nanoseconds of the system's clock, until which it has used up the time of
 * the emulated machine. It goes on only when that moment has come, so nothing happens too early; and what comes too
 * late in this process (a thread that was not woken in time) is not counted against the emulated machine, for the next
 * transfer is booked from the channel's clock on, and signals carry their moment of arrival with them. */

#ifndef COLLSYN_EMULATE_H
#define COLLSYN_EMULATE_H

#include <sched.h>
#include <string.h>

#include "job.h"

/* A link of the job, in memory that all ranks share: booked up to `free`, apart from gaps before it, oldest first. */
enum { GAPS = 15, LOCK_TRIES = 1000, RETRY_NS = 1000000 };
typedef struct {
    int64_t begin;
    int64_t end;
} interval;
typedef struct {
    uint32_t lock;
    int32_t num_gaps;
    int64_t free;
    interval gaps[GAPS];
} link_book;

/* Behind an instruction's record (where SIGNAL and WAIT have `src2`, see `moment`), what it costs: a transfer over a route (else -1), a signal's way, work within the rank. */
typedef struct {
    int64_t route;
    int64_t reads; /* the channel waits for the data, as GET does */
    int64_t travel_ns;
    int64_t local_ns;
    double bytes;
    double part; /* bytes that are booked at once */
} cost;

/* Between two instructions, within the bytes of a transfer, within its overhead; blocked: at a flag not yet raised. */
enum { BETWEEN, BYTES, OVERHEAD };
typedef struct {
    int64_t clock; /* 0 before a call */
    int64_t sent;  /* since when a signal of this channel travels */
    int64_t landed; /* when all that it sent has arrived */
    int64_t arrival; /* of the transfer under way */
    int64_t phase;
    int64_t blocked;
    int64_t booked; /* links of the route on which the present part is booked, and when it has passed all of them */
    int64_t passed;
    double rest; /* bytes of this phase, and of the present part */
    double part;
} channel;

typedef struct {
    job *job;
    const cost *costs; /* of each instruction */
    channel *channels;
    link_book *links;
    const int64_t *route_ptr;
    const int64_t *route_link;
    const int64_t *alpha_ns;      /* of each route */
    const double *overhead_bytes; /* of each route: as many as pass in the time of the overhead */
    const double *ns_per_byte;    /* of each entry of route_link */
    uint64_t flags_rise;          /* by that in a call, at most */
} emulation;

static void keep_gap(link_book *link, int32_t at, int64_t begin, int64_t end) {
    if (end <= begin) return;
    if (link->num_gaps == GAPS) {
        /* The oldest one: whoever is that late has had bad luck. */
        memmove(link->gaps, link->gaps + 1, (GAPS - 1) * sizeof(interval));
        link->num_gaps--;
        if (at > 0) at--;
    }
    memmove(link->gaps + at + 1, link->gaps + at, (size_t)(link->num_gaps - at) * sizeof(interval));
    link->gaps[at] = (interval){begin, end};
    link->num_gaps++;
}

static void drop_gap(link_book *link, int32_t at) {
    link->num_gaps--;
    memmove(link->gaps + at, link->gaps + at + 1, (size_t)(link->num_gaps - at) * sizeof(interval));
}

/* Books `need` of a link's time from `from` on, first in gaps that others left; the moment at which it is over. */
static int64_t book(link_book *link, int64_t from, int64_t need) {
    int64_t over = from;
    for (int32_t g = 0; g < link->num_gaps && need > 0;) {
        interval gap = link->gaps[g];
        if (gap.end <= from) {
            g++;
            continue;
        }
        int64_t begin = gap.begin > from ? gap.begin : from;
        int64_t taken = need < gap.end - begin ? need : gap.end - begin;
        over = begin + taken;
        need -= taken;
        drop_gap(link, g);
        int32_t before = link->num_gaps;
        keep_gap(link, g, begin + taken, gap.end);
        keep_gap(link, g, gap.begin, begin);
        g += link->num_gaps - before;
        if (g < 0) g = 0;
    }
    if (need > 0) {
        int64_t begin = link->free > from ? link->free : from;
        if (begin > link->free) keep_gap(link, link->num_gaps, link->free, begin);
        link->free = over = begin + need;
    }
    return over;
}

/* Whether the lock was got; not where its holder does not run for long, or never again. */
static int lock(link_book *link) {
    for (int tries = 0; tries < LOCK_TRIES; tries++) {
        uint32_t open = 0;
        if (__atomic_compare_exchange_n(&link->lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return 1;
        sched_yield();
    }
    return 0;
}

/* Books the present part on the links of the route; whether all of it is booked. Each link passes it as soon as it can,
 * the slowest decides. */
static int book_part(const emulation *e, channel *ch, const cost *c) {
    int64_t route = c->route, begin = e->route_ptr[route], end = e->route_ptr[route + 1];
    if (ch->part <= 0) {
        /* No crumbs at the end. */
        ch->part = ch->rest < 1.5 * c->part ? ch->rest : c->part;
        ch->booked = 0;
        ch->passed = ch->clock;
    }
    for (; begin + ch->booked < end; ch->booked++) {
        int64_t number = e->route_link[begin + ch->booked];
        link_book *link = &e->links[number];
        if (!lock(link)) return 0;
        double need = ch->part * e->ns_per_byte[begin + ch->booked];
        int64_t over = book(link, ch->clock, (int64_t)(need + 0.5));
        __atomic_store_n(&link->lock, 0, __ATOMIC_RELEASE);
        if (over > ch->passed) ch->passed = over;
    }
    ch->clock = ch->passed;
    ch->rest -= ch->part;
    ch->part = 0;
    return 1;
}

/* Goes on with a transfer by one part, or to the end of what takes no time; whether anything happened. */
static int transfer(const emulation *e, channel *ch, const instruction *i, const cost *c, int64_t *at) {
    if (ch->phase == BETWEEN) {
        work(e->job, i);
        ch->phase = BYTES;
        ch->rest = c->bytes;
        ch->part = 0;
    }
    if (ch->rest > 0) return book_part(e, ch, c);
    if (ch->phase == BYTES) {
        ch->sent = ch->clock;
        ch->arrival = ch->clock + e->alpha_ns[c->route];
        ch->phase = OVERHEAD;
        ch->rest = e->overhead_bytes[c->route];
        return 1;
    }
    ch->phase = BETWEEN;
    if (c->reads) {
        ch->clock = (ch->clock > ch->arrival ? ch->clock : ch->arrival) + c->local_ns;
        ch->sent = ch->clock;
    } else if (ch->arrival > ch->landed) {
        ch->landed = ch->arrival;
    }
    ++*at;
    return 1;
}

/* Where the moment stands at which a signal arrives: it has two places, for calls by turns, for its sender may be a call
 * ahead. A wait looks at those of the signal that it needs. */
static int64_t *moment(const emulation *e, const instruction *i, uint64_t base) {
    return (int64_t *)i->src2 + (e->flags_rise ? base / e->flags_rise % 2 : 0);
}

static void send_signal(const emulation *e, const channel *ch, const instruction *i, const cost *c, uint64_t base) {
    int64_t due = ch->sent + c->travel_ns;
    if (due < ch->clock) due = ch->clock;
    if (due < ch->landed) due = ch->landed;
    __atomic_store_n(moment(e, i, base), due, __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)i->dst, base + i->value, __ATOMIC_RELEASE);
    collsyn_ring((control *)i->src);
}

/* Goes on with channel k by one step if its moment has come; else that moment, if known, goes into `*wake`. */
static int step(const emulation *e, int64_t k, uint64_t base, int64_t now, int64_t *wake) {
    job *j = e->job;
    channel *ch = &e->channels[k];
    ch->blocked = 0;
    if (ch->clock > now) {
        if (ch->clock < *wake) *wake = ch->clock;
        return 0;
    }
    int64_t *at = &j->next[k];
    if (*at == j->end[k]) return 0;
    const instruction *i = &j->instructions[*at];
    const cost *c = &e->costs[*at];
    if (c->route >= 0) {
        if (transfer(e, ch, i, c, at)) return 1;
        if (now + RETRY_NS < *wake) *wake = now + RETRY_NS;
        return 0;
    }
    if (i->kind == SIGNAL) {
        send_signal(e, ch, i, c, base);
        ++*at;
        return 1;
    }
    if (i->kind == WAIT) {
        if (!raised(i, base)) {
            ch->blocked = 1;
            return 0;
        }
        int64_t due = i->src2 ? __atomic_load_n(moment(e, i, base), __ATOMIC_RELAXED) : 0;
        if (due > now) {
            if (due < *wake) *wake = due;
            return 0;
        }
        if (due > ch->clock) ch->clock = due;
    } else {
        work(j, i);
        ch->clock += c->local_ns;
    }
    ch->sent = ch->clock;
    ++*at;
    return 1;
}

static int any_unblocked(const void *waiting, uint64_t base) {
    const emulation *e = (const emulation *)waiting;
    const job *j = e->job;
    for (int64_t k = 0; k < j->num_channels; k++)
        if (e->channels[k].blocked && raised(&j->instructions[j->next[k]], base)) return 1;
    return 0;
}

/* As collsyn_run, on the emulated machine. A rank is done when the clocks of all its channels have come. */
int collsyn_emulate(emulation *e, uint64_t base, int64_t slice_ns) {
    job *j = e->job;
    int64_t now = now_ns(), deadline = now + slice_ns;
    for (int64_t k = 0; k < j->num_channels; k++)
        if (!e->channels[k].clock) e->channels[k].clock = e->channels[k].sent = now;
    for (;;) {
        int left = 0, progressed = 0;
        int64_t wake = INT64_MAX;
        now = now_ns();
        for (int64_t k = 0; k < j->num_channels; k++) {
            /* One step each: channels that are late catch up side by side, too. */
            progressed |= step(e, k, base, now, &wake);
            left |= j->next[k] < j->end[k] || e->channels[k].clock > now;
        }
        if (!left) {
            memset(e->channels, 0, (size_t)j->num_channels * sizeof(channel));
            return DONE;
        }
        if (__atomic_load_n(&j->own->aborted, __ATOMIC_ACQUIRE)) return ABORTED;
        if (progressed) {
            deadline = now_ns() + slice_ns;
            continue;
        }
        if (now >= deadline) return STALLED;
        sleep_until_rung(j->own, any_unblocked, e, base, (wake < deadline ? wake : deadline) - now);
    }
}

#endif
