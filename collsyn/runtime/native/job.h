/* What both loops share: instructions, control blocks, flags, and sleep until something happens. */

#ifndef COLLSYN_JOB_H
#define COLLSYN_JOB_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "copy.h"
#include "reduce.h"

/* Also the columns of the loader's record type; `flag` shares a place with `dst`, the doorbell with `src`. From SEND on
 * they are for ranks in other boxes: `src2` is the rank, and what is there is a place in its region. */
enum { NOP, MOVE, REDUCE_INTO, SIGNAL, WAIT, STREAM, SEND, SEND_DIRECT, RAISE, FETCH, AWAIT };
typedef struct {
    int64_t kind;
    void *dst;
    void *src;
    void *src2;
    int64_t count; /* bytes of a move, elements of a reduction */
    uint64_t value;
} instruction;

/* Head of a rank's control block; the abort word stands in a line of its own. */
typedef struct {
    uint32_t bell;
    uint32_t sleeping;
    uint8_t pad[56];
    uint64_t aborted;
} control;

typedef struct {
    const instruction *instructions;
    const int64_t *end; /* of each channel */
    int64_t *next;      /* of each channel: the instruction it stands at */
    int64_t num_channels;
    control *own;
    int64_t polls; /* before sleeping */
    int64_t dtype;
    int64_t op;
    void *proxy; /* NULL: all ranks share memory; else a region of every rank's memory that far ones name */
    int64_t region;
    uint64_t generation;
    int64_t *asked;    /* of each channel: what the proxy was asked to say when it is done, */
    int64_t *answered; /* and what it has said */
} job;

enum { DONE, STALLED, ABORTED };

/* Whether something that a sleeper waits for has happened. */
typedef int news_test(const void *waiting, uint64_t base);

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline int raised(const instruction *wait, uint64_t base) {
    return __atomic_load_n((const uint64_t *)wait->dst, __ATOMIC_ACQUIRE) >= base + wait->value;
}

/* Wakes the owner of a control block if it sleeps; the fence pairs with that of `sleep_until_rung`: either the owner
 * sees the flag that was raised before, or this thread sees that it sleeps. */
void collsyn_ring(control *peer) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&peer->sleeping, __ATOMIC_RELAXED) && __atomic_exchange_n(&peer->sleeping, 0, __ATOMIC_SEQ_CST)) {
        __atomic_fetch_add(&peer->bell, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &peer->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static void sleep_until_rung(control *own, news_test *news, const void *waiting, uint64_t base, int64_t at_most_ns) {
    uint32_t bell = __atomic_load_n(&own->bell, __ATOMIC_SEQ_CST);
    __atomic_store_n(&own->sleeping, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!news(waiting, base) && !__atomic_load_n(&own->aborted, __ATOMIC_RELAXED)) {
        struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
        syscall(SYS_futex, &own->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
    }
    __atomic_store_n(&own->sleeping, 0, __ATOMIC_RELAXED);
}

/* Does what an instruction does to data, if anything. */
static inline void work(const job *j, const instruction *i) {
    if (i->kind == MOVE || i->kind == STREAM)
        copy(i->dst, i->src, i->count, i->kind == STREAM);
    else if (i->kind == REDUCE_INTO)
        REDUCE_KERNELS[j->dtype][j->op](i->dst, i->src, i->src2, i->count);
}

#endif
