/* Runs one rank's channels of a plan on shared memory.
 *
 * All addresses are those of this process; which of them lie in a peer's arena does not matter here. One thread runs
 * all channels in turn: a channel goes on until it ends or waits for a flag that is not yet raised. When all of them
 * wait, the thread polls a few times and then sleeps on its doorbell, a futex that signallers ring if it says that it
 * sleeps. */

#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "copy.h"
#include "reduce.h"

/* Also the columns of the loader's record type; `flag` shares a place with `dst`, the doorbell with `src`. */
enum { NOP, MOVE, REDUCE_INTO, SIGNAL, WAIT, STREAM };
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
} job;

enum { DONE, STALLED, ABORTED };

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

static int any_raised(const job *j, uint64_t base) {
    for (int64_t c = 0; c < j->num_channels; c++)
        if (j->next[c] < j->end[c] && raised(&j->instructions[j->next[c]], base)) return 1;
    return 0;
}

static void sleep_until_rung(const job *j, uint64_t base, int64_t at_most_ns) {
    uint32_t bell = __atomic_load_n(&j->own->bell, __ATOMIC_SEQ_CST);
    __atomic_store_n(&j->own->sleeping, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!any_raised(j, base) && !__atomic_load_n(&j->own->aborted, __ATOMIC_RELAXED)) {
        struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
        syscall(SYS_futex, &j->own->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
    }
    __atomic_store_n(&j->own->sleeping, 0, __ATOMIC_RELAXED);
}

/* Runs a channel as far as it goes; the instruction it then stands at. */
static int64_t advance(const job *j, int64_t at, int64_t end, uint64_t base) {
    for (; at < end; at++) {
        const instruction *i = &j->instructions[at];
        switch (i->kind) {
        case MOVE:
        case STREAM:
            copy(i->dst, i->src, i->count, i->kind == STREAM);
            break;
        case REDUCE_INTO:
            REDUCE_KERNELS[j->dtype][j->op](i->dst, i->src, i->src2, i->count);
            break;
        case SIGNAL:
            __atomic_store_n((uint64_t *)i->dst, base + i->value, __ATOMIC_RELEASE);
            collsyn_ring((control *)i->src);
            break;
        case WAIT:
            if (!raised(i, base)) return at;
            break;
        default:
            break;
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
            j->next[c] = advance(j, at, j->end[c], base);
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
        sleep_until_rung(j, base, deadline - now);
        idle = 0;
    }
}

/* Moves and reductions by themselves. */
void collsyn_copy(void *dst, const void *src, int64_t count, int64_t stream) { copy(dst, src, count, stream != 0); }

void collsyn_reduce(int64_t dtype, int64_t op, void *dst, const void *src, const void *src2, int64_t count) {
    REDUCE_KERNELS[dtype][op](dst, src, src2, count);
}

void collsyn_divide(int64_t dtype, void *data, int64_t count, int64_t divisor) {
    DIVIDE_KERNELS[dtype](data, count, divisor);
}
