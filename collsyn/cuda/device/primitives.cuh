/* The primitives: moves and reductions that threads share, flags, and packets that carry their flags.
 *
 * Memory order, in short: `raise` releases, `lowered` and `await` acquire, both at system scope, which reaches peers and
 * the host; `meet` orders the threads of a block, and so makes one thread's release stand for all of them. Data itself
 * is moved by plain accesses. Every wait has a limit. */

#ifndef COLLSYN_PRIMITIVES_CUH
#define COLLSYN_PRIMITIVES_CUH

#include "elements.cuh"

namespace collsyn {

/* One of all threads that share a move, of one block or of several. */
struct worker {
    u64 index, count;
};

COLLSYN_FN worker worker_of(const thread &t) { return worker{t.index, t.count}; }
COLLSYN_FN worker worker_of(const thread &t, u32 block, u32 blocks) {
    return worker{(u64)block * t.count + t.index, (u64)blocks * t.count};
}

/* How long waits may last, and the word that ends them all (nullptr: none), which is not 0 then. */
struct patience {
    u64 limit_ns;
    const u32 *aborted;
};

enum : u32 { DONE, TIMED_OUT, ABORTED };

/* Whole units of T; both begin one. Four loads are under way at once. */
template <typename T>
COLLSYN_FN void copy_units(worker w, T *dst, const T *src, u64 count) {
    u64 i = w.index;
    for (; i + 3 * w.count < count; i += 4 * w.count) {
        T a = src[i], b = src[i + w.count], c = src[i + 2 * w.count], d = src[i + 3 * w.count];
        dst[i] = a;
        dst[i + w.count] = b;
        dst[i + 2 * w.count] = c;
        dst[i + 3 * w.count] = d;
    }
    for (; i < count; i += w.count) dst[i] = src[i];
}

/* By units of T, whose places within T agree, and bytes around them. */
template <typename T>
COLLSYN_FN void copy_aligned(worker w, u8 *dst, const u8 *src, u64 count) {
    u64 head = (0 - (u64)dst) % sizeof(T);
    if (head > count) head = count;
    u64 units = (count - head) / sizeof(T), behind = head + units * sizeof(T);
    copy_units(w, dst, src, head);
    copy_units(w, (T *)(dst + head), (const T *)(src + head), units);
    copy_units(w, dst + behind, src + behind, count - behind);
}

/* Bytes that do not overlap (or dst == src: nothing happens). Plain accesses, no order: see raise. */
COLLSYN_FN void copy(worker w, void *dst, const void *src, u64 count) {
    if (dst == src) return;
    u64 apart = (u64)dst ^ (u64)src;
    if (apart % sizeof(vector16) == 0)
        copy_aligned<vector16>(w, (u8 *)dst, (const u8 *)src, count);
    else if (apart % sizeof(u32) == 0)
        copy_aligned<u32>(w, (u8 *)dst, (const u8 *)src, count);
    else
        copy_aligned<u8>(w, (u8 *)dst, (const u8 *)src, count);
}

/* To a peer's memory, and from it: copies whose other end is mapped here. */
COLLSYN_FN void put(worker w, void *peer, const void *own, u64 count) { copy(w, peer, own, count); }
COLLSYN_FN void get(worker w, void *own, const void *peer, u64 count) { copy(w, own, peer, count); }

/* dst = src (+) src2 by `count` elements; dst may be one of the others, at its very place. Plain accesses, no order.
 * 16 bytes at once where all three lie alike. */
template <u32 DTYPE, u32 OP>
COLLSYN_FN void reduce(worker w, void *dst, const void *src, const void *src2, u64 count) {
    using T = typename element<DTYPE>::stored;
    constexpr u32 EACH = sizeof(vector16) / sizeof(T);
    union pack {
        vector16 whole;
        T each[EACH];
    };
    T *to = (T *)dst;
    const T *left = (const T *)src, *right = (const T *)src2;
    u64 head = count, packs = 0;
    if ((((u64)dst ^ (u64)src) | ((u64)dst ^ (u64)src2)) % sizeof(vector16) == 0) {
        u64 before = (0 - (u64)dst) % sizeof(vector16) / sizeof(T);
        head = before < count ? before : count;
        packs = (count - head) / EACH;
    }
    for (u64 i = w.index; i < head; i += w.count) to[i] = combine<DTYPE, OP>(left[i], right[i]);
    for (u64 i = w.index; i < packs; i += w.count) {
        pack a, b;
        a.whole = ((const vector16 *)(left + head))[i];
        b.whole = ((const vector16 *)(right + head))[i];
        for (u32 k = 0; k < EACH; k++) a.each[k] = combine<DTYPE, OP>(a.each[k], b.each[k]);
        ((vector16 *)(to + head))[i] = a.whole;
    }
    for (u64 i = head + packs * EACH + w.index; i < count; i += w.count) to[i] = combine<DTYPE, OP>(left[i], right[i]);
}

/* The same with type and operation known only when it runs. */
template <u32 DTYPE>
COLLSYN_FN void reduce_by(u32 op, worker w, void *dst, const void *src, const void *src2, u64 count) {
    switch (op) {
    case SUM: return reduce<DTYPE, SUM>(w, dst, src, src2, count);
    case PROD: return reduce<DTYPE, PROD>(w, dst, src, src2, count);
    case MIN: return reduce<DTYPE, MIN>(w, dst, src, src2, count);
    default: return reduce<DTYPE, MAX>(w, dst, src, src2, count);
    }
}
COLLSYN_FN void reduce_any(u32 dtype, u32 op, worker w, void *dst, const void *src, const void *src2, u64 count) {
    switch (dtype) {
    case FLOAT32: return reduce_by<FLOAT32>(op, w, dst, src, src2, count);
    case FLOAT64: return reduce_by<FLOAT64>(op, w, dst, src, src2, count);
    case FLOAT16: return reduce_by<FLOAT16>(op, w, dst, src, src2, count);
    case BFLOAT16: return reduce_by<BFLOAT16>(op, w, dst, src, src2, count);
    case INT32: return reduce_by<INT32>(op, w, dst, src, src2, count);
    case INT64: return reduce_by<INT64>(op, w, dst, src, src2, count);
    default: return reduce_by<UINT8>(op, w, dst, src, src2, count);
    }
}

/* Elements divided in place, integers toward zero. */
template <u32 DTYPE>
COLLSYN_FN void divide(worker w, void *data, u64 count, u32 divisor) {
    using T = typename element<DTYPE>::stored;
    for (u64 i = w.index; i < count; i += w.count) ((T *)data)[i] = element<DTYPE>::quotient(((T *)data)[i], divisor);
}

/* One thread: the flag gets a value. Release at system scope: whoever acquires the value sees all that this thread did
 * before, and all that threads did which it has met since. */
COLLSYN_FN void raise(u64 *flag, u64 value) { store_release(flag, value); }

/* One thread: whether a flag is still below a value. Acquire at system scope. */
COLLSYN_FN bool lowered(const u64 *flag, u64 value) { return load_acquire(flag) < value; }

/* One thread: until `ready()`, which must acquire what the caller reads then. DONE, TIMED_OUT or ABORTED. */
template <typename Ready>
COLLSYN_FN u32 await(patience p, Ready ready) {
    u64 begin = 0;
    for (u32 polls = 0; !ready(); polls++) {
        pause(polls);
        /* Reading the clock takes longer than a flag. */
        if (polls % 64 != 63) continue;
        if (p.aborted && load_acquire(p.aborted)) return ABORTED;
        u64 now = now_ns();
        if (!begin) begin = now;
        if (now - begin > p.limit_ns) return TIMED_OUT;
    }
    return DONE;
}

/* All threads of a block: what they did before is seen by those who acquire `value`. */
COLLSYN_FN void signal(thread &t, u64 *flag, u64 value) {
    meet(t);
    if (t.index == 0) raise(flag, value);
}

/* All threads of a block: until the flag is at least `value`; behind it all see what the signaller did before. Whether
 * it came in time. */
COLLSYN_FN bool wait(thread &t, const u64 *flag, u64 value, patience p) {
    bool late = t.index == 0 && await(p, [&] { return !lowered(flag, value); }) != DONE;
    return !meet_any(t, late);
}

/* All threads of a block: what they put before is in the peers' memory, not only ordered before what follows. A fence
 * at system scope by every thread, and a meeting. */
COLLSYN_FN void flush(thread &t) {
    fence();
    meet(t);
}

/* Packets: 4 bytes of data and a 4-byte flag in one 8-byte store, relaxed at system scope, which nothing can tear. The
 * reader polls the data itself, so no order between accesses is needed and small messages arrive a trip earlier. A flag
 * must differ from all that stood in the same packet before: count calls, and let at least one other exchange with the
 * same peer lie between two uses of a packet, for instance by using two sets in turns. Where count and places allow,
 * two packets go in one 16-byte access, of which each half is whole for itself. */
COLLSYN_FN u64 packet(u32 data, u32 flag) { return (u64)flag << 32 | data; }

#ifdef COLLSYN_GPU
COLLSYN_FN void store_two(u64 *to, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}
COLLSYN_FN void load_two(const u64 *from, u64 &first, u64 &second) {
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
}
#else
COLLSYN_FN void store_two(u64 *to, u64 first, u64 second) {
    store_relaxed(to, first);
    store_relaxed(to + 1, second);
}
COLLSYN_FN void load_two(const u64 *from, u64 &first, u64 &second) {
    first = load_relaxed(from);
    second = load_relaxed(from + 1);
}
#endif

/* Threads share `words` of 4 bytes: packet i carries word i. Packets begin a 16-byte unit. */
COLLSYN_FN void put_packets(worker w, u64 *packets, const u32 *words, u64 count, u32 flag) {
    for (u64 i = w.index; i < count / 2; i += w.count)
        store_two(packets + 2 * i, packet(words[2 * i], flag), packet(words[2 * i + 1], flag));
    if (count % 2 && w.index == 0) store_relaxed(packets + count - 1, packet(words[count - 1], flag));
}

/* Threads share the packets; `use(i, word)` is called for each that has come, at once. Whether this thread's came in
 * time: let the block `meet_any` on it before others rely on them. */
template <typename Use>
COLLSYN_FN bool get_packets(worker w, const u64 *packets, u64 count, u32 flag, patience p, Use use) {
    for (u64 i = 2 * w.index; i < count; i += 2 * w.count) {
        bool both = i + 1 < count;
        u64 first = 0, second = 0;
        u32 came = await(p, [&] {
            if (both)
                load_two(packets + i, first, second);
            else
                first = load_relaxed(packets + i);
            return (u32)(first >> 32) == flag && (!both || (u32)(second >> 32) == flag);
        });
        if (came != DONE) return false;
        use(i, (u32)first);
        if (both) use(i + 1, (u32)second);
    }
    return true;
}

#ifdef COLLSYN_GPU
/* 16-byte packets: 12 bytes of data and a 4-byte flag in one access that nothing can tear (sm_70, PTX 8.3). C++ has no
 * such store, so these are for GPUs alone. Packet i carries words 3 i to 3 i + 2. */
COLLSYN_FN void put_wide_packets(worker w, vector16 *packets, const u32 *words, u64 count, u32 flag) {
    for (u64 i = w.index; i < count; i += w.count) {
        u64 low = (u64)words[3 * i + 1] << 32 | words[3 * i], high = packet(words[3 * i + 2], flag);
        asm volatile("{ .reg .b128 whole; mov.b128 whole, {%1, %2}; st.relaxed.sys.b128 [%0], whole; }" ::"l"(packets + i),
                     "l"(low), "l"(high)
                     : "memory");
    }
}
template <typename Use>
COLLSYN_FN bool get_wide_packets(worker w, const vector16 *packets, u64 count, u32 flag, patience p, Use use) {
    for (u64 i = w.index; i < count; i += w.count) {
        u64 low = 0, high = 0;
        u32 came = await(p, [&] {
            asm volatile("{ .reg .b128 whole; ld.relaxed.sys.b128 whole, [%2]; mov.b128 {%0, %1}, whole; }"
                         : "=l"(low), "=l"(high)
                         : "l"(packets + i)
                         : "memory");
            return (u32)(high >> 32) == flag;
        });
        if (came != DONE) return false;
        use(3 * i, (u32)low);
        use(3 * i + 1, (u32)(low >> 32));
        use(3 * i + 2, (u32)high);
    }
    return true;
}
#endif

/* Blocks of one GPU that work together: a counter and the number of their last meeting. */
struct group {
    u32 arrived, generation;
};

/* One thread of each of `blocks` blocks: until all are here. Acquires and releases within the GPU. The generation is
 * read before the arrival, so it cannot have moved on without this block. */
COLLSYN_FN u32 meet_blocks(group *g, u32 blocks, patience p) {
    u32 generation = load_acquire(&g->generation);
    if (add_acquire_release(&g->arrived, 1) == blocks - 1) {
        store_relaxed(&g->arrived, 0);
        store_release(&g->generation, generation + 1);
        return DONE;
    }
    return await(p, [&] { return load_acquire(&g->generation) != generation; });
}

}  // namespace collsyn

#endif
