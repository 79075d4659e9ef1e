/* A launch of a kernel on threads of the host, for tests/support/host_gpu.py. */

#include <string.h>
#include <sys/resource.h>

#include <vector>

#include KERNEL

using namespace collsyn;

struct work {
    void (*entry)(void *, const void *);
    const void *argument;
    thread t;
};

static void *begin(void *given) {
    work *w = (work *)given;
    w->entry(&w->t, w->argument);
    return nullptr;
}

extern "C" int host_launch(void (*entry)(void *, const void *), const void *argument, u32 blocks, u32 threads) {
    std::vector<host_block> shared(blocks);
    std::vector<work> all;
    for (u32 b = 0; b < blocks; b++) {
        pthread_barrier_init(&shared[b].barrier, nullptr, threads);
        for (u32 i = 0; i < threads; i++) all.push_back(work{entry, argument, {i, threads, b, blocks, &shared[b], 0}});
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    std::vector<pthread_t> running(all.size());
    for (size_t i = 0; i < all.size(); i++)
        if (pthread_create(&running[i], &small, begin, &all[i])) return 1;
    for (pthread_t one : running) pthread_join(one, nullptr);
    for (u32 b = 0; b < blocks; b++) pthread_barrier_destroy(&shared[b].barrier);
    return 0;
}

/* What a driver offers to copy: runtime/native/device.h. */
extern "C" {
long host_copies;
int host_enter(void *context) { return context == (void *)1 ? 0 : 201; }
int host_copy(u64 to, u64 from, size_t count, void *stream) {
    if (stream != (void *)2) return 400;
    memcpy((void *)to, (const void *)from, count);
    __atomic_fetch_add(&host_copies, 1, __ATOMIC_RELAXED);
    return 0;
}
int host_wait(void *stream) { return stream == (void *)2 ? 0 : 400; }
}
