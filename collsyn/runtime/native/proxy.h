/* Carries puts, signals and gets to ranks of other boxes: one thread a rank that alone calls MPI.
 *
 * The executor posts letters into a ring; the thread sends them, takes what arrives, writes it into this rank's memory
 * and raises flags there. Letters of one rank to another stay in order, flags thus come behind the data they announce.
 * A letter is one message with its data behind it, or (from `direct_from` bytes on) the data follows by itself, straight
 * from and to the memory of the users. Which MPI it is does not matter: its calls come as addresses, and handles, be they
 * integers or pointers, are passed in 64 bits. */

#ifndef COLLSYN_PROXY_H
#define COLLSYN_PROXY_H

#include <limits.h>
#include <stdlib.h>

#include "device.h"
#include "job.h"

enum { LETTERS = 32, ARRIVALS = 8, REPLIES = 8, BLOCK = 1 << 16, WORDS = 832 };
enum { PUT, RAISE_FLAG, ASK, ANSWER, ABORT, BYE, BEAT };
enum { BUSY_POLLS = 200, CROWDED_POLLS = 2 };
/* What fails beside MPI, whose codes are above 0: memory is named that is not there; a GPU's driver did not copy. */
enum { NO_MEMORY = -1, NO_COPY = -2 };
#define FIRST_NAP_NS 20000
#define LAST_NAP_NS 500000
#define LONG_NAP_NS 4000000
#define QUIET_NS 100000000
#define BEAT_NS 1000000000

typedef uint64_t handle;
typedef int transfer_call(void *, int, handle, int, int, handle, handle *);
typedef int test_call(handle *, int *, void *);
typedef int cancel_call(handle *);
typedef int copy_call(void *, void *, const void *, int64_t);

/* What the loader fills in. */
typedef struct {
    transfer_call *isend, *irecv;
    test_call *test;
    cancel_call *cancel;
    copy_call *copy; /* NULL: memcpy; else this rank's memory is a GPU's, */
    void *copy_with; /* and this goes along */
    handle byte, comm;
    int64_t any_source, tag; /* of letters; their data has the next one */
    int64_t rank, size;
    const int64_t *mpi_rank; /* of every rank */
    const uint8_t *is_far;   /* of every rank */
    control *own;
    int64_t direct_from; /* bytes */
    int64_t polls;       /* of MPI before a nap */
    int64_t beats_to, beats_from; /* ranks that hear, and are heard, once a second; or -1 */
} setup;

typedef struct {
    uint32_t kind, source, region, is_direct;
    uint64_t generation;
    uint64_t place; /* in the receiver's region */
    uint64_t count;
    uint64_t value;
    uint64_t address; /* where data comes from, or where the answer goes: of the process that asks */
    uint64_t counter; /* to be increased when that is done */
} letter;

typedef struct {
    letter head;
    char data[BLOCK];
} message;

typedef struct {
    message text;
    int64_t to;
    handle requests[2];
} outgoing;

typedef struct {
    message text;
    handle request;
} arrival;

/* Memory of this rank that others may name; a letter to an older generation of it is too late to matter. */
typedef struct {
    uint64_t generation;
    char *address;
    uint64_t size;
    lane *lanes; /* of the kernel that works on it, if one does */
    int64_t num_lanes;
} region;

typedef struct {
    setup s;
    control door; /* of the thread */
    outgoing *letters, *replies;
    arrival *arrivals;
    uint64_t head;                  /* letters posted by the executor */
    uint64_t sent, tail;            /* letters sent, and done */
    uint64_t reply_head, reply_tail;
    uint64_t arrived;
    handle landing; /* direct data that arrives now */
    int is_landing;
    letter *asks;
    int64_t num_asks, asks_room;
    region *regions;
    int64_t num_regions;
    int regions_lock;
    int64_t num_lanes; /* of all regions */
    message abort_text, bye_text, beat_text;
    handle *abort_requests, *bye_requests, beat_request;
    int abort_asked, abort_sent, bye_sent;
    int64_t leave_at_ns; /* 0: stay */
    int64_t byes, num_far;
    int64_t failed, failed_peer;
    int64_t heard_ns, beat_ns, busy_ns;
    int is_clean;
    char last_words[WORDS];
} proxy;

static void fail(proxy *p, int code, int64_t peer) {
    if (!p->failed) {
        p->failed_peer = peer;
        __atomic_store_n(&p->failed, code, __ATOMIC_RELEASE);
    }
    collsyn_ring(p->s.own);
}

/* Whether a request, if there is one, is over. */
static int is_done(proxy *p, handle *request, int64_t peer) {
    uint64_t status[16];
    int flag = 0, code = p->s.test(request, &flag, status);
    if (code) fail(p, code, peer);
    return flag && !code;
}

static void send_part(proxy *p, void *data, int64_t count, int64_t to, int is_data, handle *request) {
    int code = p->s.isend(data, (int)count, p->s.byte, (int)p->s.mpi_rank[to], (int)p->s.tag + is_data, p->s.comm, request);
    if (code) fail(p, code, to);
}

static void copy_data(proxy *p, void *dst, const void *src, int64_t count) {
    if (!p->s.copy)
        memcpy(dst, src, (size_t)count);
    else if (count && p->s.copy(p->s.copy_with, dst, src, count))
        fail(p, NO_COPY, p->s.rank);
}

/* ---- The executor's side; of kernels on GPUs the thread itself does it. */

static inline int has_room(const proxy *p) { return p->head - __atomic_load_n(&p->tail, __ATOMIC_ACQUIRE) < LETTERS; }

static inline void post(proxy *p, int64_t to, letter head, const void *data) {
    outgoing *o = &p->letters[p->head % LETTERS];
    head.source = (uint32_t)p->s.rank;
    o->text.head = head;
    o->to = to;
    if (data && !head.is_direct) copy_data(p, o->text.data, data, (int64_t)head.count);
    __atomic_store_n(&p->head, p->head + 1, __ATOMIC_RELEASE);
    collsyn_ring(&p->door);
}

/* ---- The thread's side. */

static void send_letter(proxy *p, outgoing *o) {
    const letter *l = &o->text.head;
    int has_data = l->kind == PUT || l->kind == ANSWER;
    int64_t behind = has_data && !l->is_direct ? (int64_t)l->count : 0;
    o->requests[0] = o->requests[1] = 0;
    send_part(p, &o->text, (int64_t)sizeof(letter) + behind, o->to, 0, &o->requests[0]);
    if (has_data && l->is_direct && !p->failed)
        send_part(p, (void *)l->address, (int64_t)l->count, o->to, 1, &o->requests[1]);
}

/* Posts what kernels ask for as far as there is room: a put's data is on its way, or in its letter. */
static int take_requests(proxy *p) {
    static const uint32_t kinds[] = {[SEND] = PUT, [RAISE] = RAISE_FLAG, [FETCH] = ASK};
    int any = 0;
    if (!__atomic_load_n(&p->num_lanes, __ATOMIC_RELAXED)) return 0;
    while (__atomic_exchange_n(&p->regions_lock, 1, __ATOMIC_ACQUIRE)) relax();
    for (int64_t number = 0; number < p->num_regions; number++) {
        const region *r = &p->regions[number];
        for (lane *at = r->lanes; at < r->lanes + r->num_lanes; at++) {
            uint64_t head = __atomic_load_n(&at->head, __ATOMIC_ACQUIRE);
            for (; at->taken < head && has_room(p) && !p->failed; any = 1) {
                const request *q = &at->requests[at->taken % LANE_ROOM];
                letter l = {.kind = kinds[q->kind], .region = (uint32_t)number, .generation = r->generation};
                l.is_direct = l.kind == PUT && (int64_t)q->count >= p->s.direct_from;
                l.place = q->place;
                l.address = q->address;
                l.count = q->count;
                l.value = q->value;
                l.counter = (uint64_t)&at->answered;
                post(p, q->peer, l, l.kind == PUT ? (const void *)q->address : NULL);
                if (l.kind == PUT && !l.is_direct) __atomic_fetch_add(&at->answered, 1, __ATOMIC_RELEASE);
                __atomic_store_n(&at->taken, at->taken + 1, __ATOMIC_RELEASE);
            }
        }
    }
    __atomic_store_n(&p->regions_lock, 0, __ATOMIC_RELEASE);
    return any;
}

static int send_posted(proxy *p) {
    uint64_t head = __atomic_load_n(&p->head, __ATOMIC_ACQUIRE);
    int any = p->sent < head;
    for (; p->sent < head && !p->failed; p->sent++) send_letter(p, &p->letters[p->sent % LETTERS]);
    return any;
}

/* `requests[k]` of 0 are none only where nothing was sent; MPI's own null requests are done at once. */
static int is_gone(proxy *p, outgoing *o) {
    if (!is_done(p, &o->requests[0], o->to)) return 0;
    return !(o->text.head.is_direct && (o->text.head.kind == PUT || o->text.head.kind == ANSWER)) ||
           is_done(p, &o->requests[1], o->to);
}

static int reap(proxy *p) {
    int any = 0;
    for (; p->tail < p->sent && !p->failed; any = 1) {
        outgoing *o = &p->letters[p->tail % LETTERS];
        if (!is_gone(p, o)) break;
        if (o->text.head.kind == PUT && o->text.head.is_direct)
            __atomic_fetch_add((int64_t *)o->text.head.counter, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&p->tail, p->tail + 1, __ATOMIC_RELEASE);
    }
    for (; p->reply_tail < p->reply_head && !p->failed; p->reply_tail++)
        if (!is_gone(p, &p->replies[p->reply_tail % REPLIES])) break;
    return any;
}

/* The memory that a letter names, or NULL. */
static char *place_of(proxy *p, const letter *l, uint64_t count) {
    char *found = NULL;
    while (__atomic_exchange_n(&p->regions_lock, 1, __ATOMIC_ACQUIRE)) relax();
    if (l->region < (uint64_t)p->num_regions) {
        const region *r = &p->regions[l->region];
        if (r->generation == l->generation && l->place <= r->size && count <= r->size - l->place)
            found = r->address + l->place;
    }
    __atomic_store_n(&p->regions_lock, 0, __ATOMIC_RELEASE);
    return found;
}

/* Answers what has been asked as far as there is room; asks never keep other letters from being taken. */
static int answer(proxy *p) {
    int64_t done = 0;
    for (; done < p->num_asks && p->reply_head - p->reply_tail < REPLIES && !p->failed; done++) {
        const letter *ask = &p->asks[done];
        outgoing *o = &p->replies[p->reply_head % REPLIES];
        int64_t to = ask->source;
        char *from = ask->count ? place_of(p, ask, ask->count) : p->last_words;
        if (!from) {
            fail(p, NO_MEMORY, to);
            break;
        }
        o->to = to;
        o->text.head = *ask;
        o->text.head.kind = ANSWER;
        o->text.head.source = (uint32_t)p->s.rank;
        o->text.head.is_direct = ask->count && (int64_t)ask->count >= p->s.direct_from;
        /* The sender's own side of `address` and the asker's are two: the asker's travels as the place. */
        o->text.head.place = ask->address;
        o->text.head.address = (uint64_t)from;
        if (!o->text.head.is_direct) copy_data(p, o->text.data, from, (int64_t)ask->count);
        send_letter(p, o);
        p->reply_head++;
    }
    p->num_asks -= done;
    memmove(p->asks, p->asks + done, (size_t)p->num_asks * sizeof(letter));
    return done > 0;
}

static void keep_ask(proxy *p, const letter *l) {
    if (p->num_asks == p->asks_room) {
        int64_t room = p->asks_room ? 2 * p->asks_room : 64;
        letter *grown = realloc(p->asks, (size_t)room * sizeof(letter));
        if (!grown) {
            fail(p, NO_MEMORY, l->source);
            return;
        }
        p->asks = grown;
        p->asks_room = room;
    }
    p->asks[p->num_asks++] = *l;
}

static void end_job(proxy *p, const message *m) {
    if (!__atomic_load_n(&p->s.own->aborted, __ATOMIC_RELAXED)) {
        memcpy(p->last_words, m->data, WORDS - 1);
        __atomic_store_n(&p->s.own->aborted, m->head.value, __ATOMIC_RELEASE);
    }
}

/* Takes a letter; whether its data is still to come by itself, into `landing`. */
static int take(proxy *p, const message *m) {
    const letter *l = &m->head;
    if (l->source == (uint64_t)p->s.beats_from) __atomic_store_n(&p->heard_ns, now_ns(), __ATOMIC_RELAXED);
    char *to = NULL;
    switch (l->kind) {
    case PUT:
        to = place_of(p, l, l->count);
        if (!to) fail(p, NO_MEMORY, l->source);
        break;
    case ANSWER: to = (char *)l->place; break;
    case RAISE_FLAG:
        to = place_of(p, l, 8);
        if (to && p->s.copy)
            copy_data(p, to, &l->value, 8);
        else if (to)
            __atomic_store_n((uint64_t *)to, l->value, __ATOMIC_RELEASE);
        return 0;
    case ASK: keep_ask(p, l); return 0;
    case ABORT: end_job(p, m); return 0;
    case BYE: p->byes++; return 0;
    default: return 0;
    }
    if (!to || p->failed) return 0;
    if (l->is_direct) {
        p->landing = 0;
        int code = p->s.irecv(to, (int)l->count, p->s.byte, (int)p->s.mpi_rank[l->source], (int)p->s.tag + 1, p->s.comm,
                              &p->landing);
        if (code) fail(p, code, l->source);
        return !code;
    }
    copy_data(p, to, m->data, (int64_t)l->count);
    return 0;
}

static void await_letter(proxy *p, arrival *a) {
    a->request = 0;
    int code = p->s.irecv(&a->text, (int)sizeof(message), p->s.byte, (int)p->s.any_source, (int)p->s.tag, p->s.comm,
                          &a->request);
    if (code) fail(p, code, -1);
}

/* Letters are taken in the order in which their receives were posted, which keeps those of one sender in order. */
static int receive(proxy *p) {
    int any = 0;
    for (int n = 0; n < ARRIVALS && !p->failed; n++, any = 1) {
        arrival *a = &p->arrivals[p->arrived % ARRIVALS];
        if (!p->is_landing) {
            if (!is_done(p, &a->request, -1)) return any;
            p->is_landing = take(p, &a->text);
        }
        if (p->failed || (p->is_landing && !is_done(p, &p->landing, a->text.head.source))) return any;
        p->is_landing = 0;
        if (a->text.head.kind == ANSWER)
            __atomic_fetch_add((int64_t *)a->text.head.counter, 1, __ATOMIC_RELEASE);
        await_letter(p, a);
        p->arrived++;
    }
    return any;
}

static void tell_all(proxy *p, message *m, uint32_t kind, int64_t behind, handle *requests) {
    m->head.kind = kind;
    m->head.source = (uint32_t)p->s.rank;
    for (int64_t rank = 0; rank < p->s.size && !p->failed; rank++)
        if (p->s.is_far[rank]) send_part(p, m, (int64_t)sizeof(letter) + behind, rank, 0, &requests[rank]);
}

static void beat(proxy *p, int64_t now) {
    if (p->s.beats_to < 0 || now < p->beat_ns) return;
    if (p->beat_ns && !is_done(p, &p->beat_request, p->s.beats_to)) return;
    p->beat_ns = now + BEAT_NS;
    p->beat_text.head.kind = BEAT;
    p->beat_text.head.source = (uint32_t)p->s.rank;
    send_part(p, &p->beat_text, sizeof(letter), p->s.beats_to, 0, &p->beat_request);
}

/* Whether all letters to all are on their way; without them, too. */
static int all_told(proxy *p, int was_sent, handle *requests) {
    for (int64_t rank = 0; was_sent && rank < p->s.size; rank++)
        if (p->s.is_far[rank] && !is_done(p, &requests[rank], rank)) return 0;
    return 1;
}

static int may_go(proxy *p) {
    return p->byes == p->num_far && p->tail == __atomic_load_n(&p->head, __ATOMIC_ACQUIRE) &&
           p->reply_tail == p->reply_head && !p->num_asks && all_told(p, p->bye_sent, p->bye_requests) &&
           all_told(p, p->abort_sent, p->abort_requests);
}

static void nap(proxy *p, int64_t length_ns) {
    uint32_t bell = __atomic_load_n(&p->door.bell, __ATOMIC_SEQ_CST);
    __atomic_store_n(&p->door.sleeping, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    int64_t leave_at = __atomic_load_n(&p->leave_at_ns, __ATOMIC_RELAXED);
    if (__atomic_load_n(&p->head, __ATOMIC_RELAXED) == p->sent && (!leave_at || p->bye_sent) &&
        (p->abort_sent || !__atomic_load_n(&p->abort_asked, __ATOMIC_RELAXED))) {
        struct timespec limit = {0, length_ns};
        syscall(SYS_futex, &p->door.bell, FUTEX_WAIT, bell, &limit, NULL, 0);
    }
    __atomic_store_n(&p->door.sleeping, 0, __ATOMIC_RELAXED);
}

/* Takes back receives that nothing will come for; whether MPI does not look at any memory of the proxy any more. */
static int clear(proxy *p, int64_t limit_ns) {
    if (p->failed || p->is_landing || p->tail != p->sent || p->reply_tail != p->reply_head) return 0;
    int64_t end = now_ns() + limit_ns;
    for (int k = 0; k < ARRIVALS; k++) p->s.cancel(&p->arrivals[k].request);
    for (int k = 0; k < ARRIVALS; k++)
        while (!is_done(p, &p->arrivals[k].request, -1)) {
            if (p->failed || now_ns() > end) return 0;
            relax();
        }
    return !(p->beat_ns && !is_done(p, &p->beat_request, -1)) && all_told(p, p->bye_sent, p->bye_requests) &&
           all_told(p, p->abort_sent, p->abort_requests);
}

/* The thread: returns when told to leave and either all others leave, too, or the limit is over, or when MPI fails. */
void collsyn_proxy_run(proxy *p) {
    int64_t polls = 0, nap_ns = FIRST_NAP_NS;
    for (int k = 0; k < ARRIVALS; k++) await_letter(p, &p->arrivals[k]);
    while (!p->failed) {
        int any = take_requests(p);
        any |= send_posted(p);
        any |= reap(p);
        any |= receive(p);
        any |= answer(p);
        int64_t now = now_ns(), leave_at = __atomic_load_n(&p->leave_at_ns, __ATOMIC_ACQUIRE);
        if (!p->abort_sent && __atomic_load_n(&p->abort_asked, __ATOMIC_ACQUIRE)) {
            p->abort_sent = 1;
            tell_all(p, &p->abort_text, ABORT, WORDS, p->abort_requests);
        }
        if (leave_at && !p->bye_sent) {
            p->bye_sent = 1;
            tell_all(p, &p->bye_text, BYE, 0, p->bye_requests);
        }
        beat(p, now);
        if (leave_at && (may_go(p) || now > leave_at)) break;
        if (any) {
            collsyn_ring(p->s.own);
            polls = 0;
            nap_ns = FIRST_NAP_NS;
            p->busy_ns = now;
        } else if (++polls < p->s.polls) {
            relax();
        } else {
            /* Between calls there is little to be quick for. Kernels cannot wake anybody. */
            int is_asked = __atomic_load_n(&p->num_lanes, __ATOMIC_RELAXED) > 0, is_quiet = now - p->busy_ns > QUIET_NS;
            nap(p, is_asked ? (is_quiet ? LAST_NAP_NS : FIRST_NAP_NS) : is_quiet ? LONG_NAP_NS : nap_ns);
            nap_ns = nap_ns * 2 > LAST_NAP_NS ? LAST_NAP_NS : nap_ns * 2;
        }
    }
    p->is_clean = clear(p, BEAT_NS);
}

/* ---- What the loader calls. */

void collsyn_proxy_free(proxy *p) {
    if (!p) return;
    free(p->letters);
    free(p->replies);
    free(p->arrivals);
    free(p->asks);
    free(p->regions);
    free(p->abort_requests);
    free(p->bye_requests);
    free(p);
}

/* NULL where memory is short. */
proxy *collsyn_proxy_new(const setup *s) {
    proxy *p = calloc(1, sizeof(proxy));
    if (!p) return NULL;
    p->s = *s;
    p->letters = calloc(LETTERS, sizeof(outgoing));
    p->replies = calloc(REPLIES, sizeof(outgoing));
    p->arrivals = calloc(ARRIVALS, sizeof(arrival));
    p->abort_requests = calloc((size_t)s->size, sizeof(handle));
    p->bye_requests = calloc((size_t)s->size, sizeof(handle));
    if (!p->letters || !p->replies || !p->arrivals || !p->abort_requests || !p->bye_requests) {
        collsyn_proxy_free(p);
        return NULL;
    }
    for (int64_t rank = 0; rank < s->size; rank++) p->num_far += s->is_far[rank];
    p->heard_ns = p->busy_ns = now_ns();
    return p;
}

/* Lets others name `size` bytes; 0 where memory is short. */
int collsyn_proxy_region(proxy *p, int64_t number, uint64_t generation, void *address, uint64_t size) {
    int found = 1;
    while (__atomic_exchange_n(&p->regions_lock, 1, __ATOMIC_ACQUIRE)) relax();
    if (number >= p->num_regions) {
        region *grown = realloc(p->regions, (size_t)(number + 1) * sizeof(region));
        found = grown != NULL;
        if (found) {
            memset(grown + p->num_regions, 0, (size_t)(number + 1 - p->num_regions) * sizeof(region));
            p->regions = grown;
            p->num_regions = number + 1;
        }
    }
    if (found) {
        __atomic_fetch_add(&p->num_lanes, -p->regions[number].num_lanes, __ATOMIC_RELAXED);
        p->regions[number] = (region){generation, address, size, NULL, 0};
    }
    __atomic_store_n(&p->regions_lock, 0, __ATOMIC_RELEASE);
    return found;
}

/* Lets a kernel that works on a region that is offered ask for what is to be carried. */
void collsyn_proxy_lanes(proxy *p, int64_t number, lane *lanes, int64_t count) {
    while (__atomic_exchange_n(&p->regions_lock, 1, __ATOMIC_ACQUIRE)) relax();
    __atomic_fetch_add(&p->num_lanes, count - p->regions[number].num_lanes, __ATOMIC_RELAXED);
    p->regions[number].lanes = lanes;
    p->regions[number].num_lanes = count;
    __atomic_store_n(&p->regions_lock, 0, __ATOMIC_RELEASE);
}

/* Tells all far ranks that `rank` failed, once; `words` are WORDS bytes. */
void collsyn_proxy_abort(proxy *p, int64_t rank, const char *words) {
    if (__atomic_load_n(&p->abort_asked, __ATOMIC_RELAXED)) return;
    memcpy(p->abort_text.data, words, WORDS);
    p->abort_text.head.value = (uint64_t)rank + 1;
    __atomic_store_n(&p->abort_asked, 1, __ATOMIC_RELEASE);
    collsyn_ring(&p->door);
}

void collsyn_proxy_leave(proxy *p, int64_t limit_ns) {
    __atomic_store_n(&p->leave_at_ns, now_ns() + limit_ns, __ATOMIC_RELEASE);
    collsyn_ring(&p->door);
}

const char *collsyn_proxy_words(const proxy *p) { return p->last_words; }

/* What failed (see above), the rank it was about or -1, nanoseconds since the watched rank was heard, and whether MPI let
 * go of all memory. */
void collsyn_proxy_state(const proxy *p, int64_t *state) {
    state[0] = __atomic_load_n(&p->failed, __ATOMIC_ACQUIRE);
    state[1] = p->failed_peer;
    state[2] = now_ns() - __atomic_load_n(&p->heard_ns, __ATOMIC_RELAXED);
    state[3] = p->is_clean;
}

#endif
