/* What differs between a GPU and threads of the host: threads and their barrier, atomic accesses, the clock.
 *
 * All else is written once on top of this. On the host a block is `count` threads of the operating system that share a
 * `host_block`; so the kernels run, and the thread sanitizer watches them, where there is no GPU. Flags and packets are
 * accessed by the functions here alone; data is accessed plainly, and ordered by them. */

#ifndef COLLSYN_SHIM_CUH
#define COLLSYN_SHIM_CUH

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define COLLSYN_GPU 1
#define COLLSYN_FN static __device__ __forceinline__
#else
#include <pthread.h>
#include <sched.h>
#include <time.h>
#define COLLSYN_FN static inline
#endif

namespace collsyn {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

/* 16 bytes that are moved at once. */
#ifdef COLLSYN_GPU
using vector16 = uint4;
#else
struct alignas(16) vector16 {
    u64 low, high;
};
struct host_block {
    pthread_barrier_t barrier;
    u32 votes[3];
};
#endif

/* Thread `index` of `count` in block `block` of `blocks`. */
struct thread {
    u32 index, count, block, blocks;
#ifndef COLLSYN_GPU
    host_block *shared;
    u32 phase; /* of the vote that comes next */
#endif
};

#ifdef COLLSYN_GPU

COLLSYN_FN thread this_thread() { return thread{threadIdx.x, blockDim.x, blockIdx.x, gridDim.x}; }

/* All threads of the block: what any did before, all see behind it. */
COLLSYN_FN void meet(thread &) { __syncthreads(); }

/* The same, and whether any of them said yes. */
COLLSYN_FN bool meet_any(thread &, bool yes) { return __syncthreads_or(yes) != 0; }

/* The state space is left open: flags and reports may lie in this GPU, at a peer, or in memory of the host. */
COLLSYN_FN u64 load_acquire(const u64 *from) {
    u64 value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
COLLSYN_FN u32 load_acquire(const u32 *from) {
    u32 value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
COLLSYN_FN void store_release(u64 *to, u64 value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
COLLSYN_FN void store_release(u32 *to, u32 value) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
COLLSYN_FN u64 load_relaxed(const u64 *from) {
    u64 value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
COLLSYN_FN void store_relaxed(u64 *to, u64 value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
COLLSYN_FN void store_relaxed(u32 *to, u32 value) {
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/* Within this GPU: the value before; acquires and releases. */
COLLSYN_FN u32 add_acquire_release(u32 *at, u32 more) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(more) : "memory");
    return before;
}

/* Whether this was the first to take a word that was 0. */
COLLSYN_FN bool take(u32 *word) { return atomicExch_system(word, 1u) == 0; }

COLLSYN_FN void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

COLLSYN_FN u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

COLLSYN_FN void pause(u32) {}

#else

COLLSYN_FN void meet(thread &t) { pthread_barrier_wait(&t.shared->barrier); }

/* Three slots by turns: one is written, one read, and one, which nobody looks at, is cleared. */
COLLSYN_FN bool meet_any(thread &t, bool yes) {
    u32 *votes = t.shared->votes, turn = t.phase++ % 3;
    if (yes) __atomic_store_n(&votes[turn], 1, __ATOMIC_RELAXED);
    pthread_barrier_wait(&t.shared->barrier);
    bool any = __atomic_load_n(&votes[turn], __ATOMIC_RELAXED) != 0;
    if (t.index == 0) __atomic_store_n(&votes[(turn + 2) % 3], 0, __ATOMIC_RELAXED);
    return any;
}

COLLSYN_FN u64 load_acquire(const u64 *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
COLLSYN_FN u32 load_acquire(const u32 *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
COLLSYN_FN void store_release(u64 *to, u64 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
COLLSYN_FN void store_release(u32 *to, u32 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
COLLSYN_FN u64 load_relaxed(const u64 *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
COLLSYN_FN void store_relaxed(u64 *to, u64 value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
COLLSYN_FN void store_relaxed(u32 *to, u32 value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
COLLSYN_FN u32 add_acquire_release(u32 *at, u32 more) { return __atomic_fetch_add(at, more, __ATOMIC_ACQ_REL); }
COLLSYN_FN bool take(u32 *word) { return __atomic_exchange_n(word, 1u, __ATOMIC_RELAXED) == 0; }

/* The sanitizer knows no fences, and nothing here needs one on the host. */
COLLSYN_FN void fence() {
#ifndef __SANITIZE_THREAD__
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

COLLSYN_FN u64 now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

/* There are more threads than cores: whoever is awaited may need this one. */
COLLSYN_FN void pause(u32 polls) {
    timespec nap = {0, 20000};
    if (polls < 16)
        sched_yield();
    else
        nanosleep(&nap, nullptr);
}

#endif

}  // namespace collsyn

/* Entry NAME of a kernel whose threads run NAME_threads(thread &, const ARGUMENT &). */
#ifdef COLLSYN_GPU
#define COLLSYN_ENTRY(NAME, ARGUMENT)                                              \
    extern "C" __global__ void __launch_bounds__(1024) NAME(ARGUMENT argument) {   \
        collsyn::thread t = collsyn::this_thread();                                \
        NAME##_threads(t, argument);                                               \
    }
#else
#define COLLSYN_ENTRY(NAME, ARGUMENT)                                              \
    extern "C" void NAME(void *t, const void *argument) {                          \
        NAME##_threads(*(collsyn::thread *)t, *(const ARGUMENT *)argument);        \
    }
#endif

#endif
