/* Runs kernels on threads of the host: reads an image of memory and the launches on it, runs all launches at once, one
 * thread of the operating system for each of theirs, and writes the image back.
 *
 * emulate IMAGE THREADS REPEATS: the file has numbers of 8 bytes: bytes of the image, how many places in it hold
 * addresses (offsets in the image until it is loaded), how many launches, these places, then of each launch the offset of
 * its argument, its blocks, its turn and its entry's name in 64 bytes; then the image. Launches of a turn run at once, one
 * turn after the other; all turns are run REPEATS times. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include KERNEL

using namespace collsyn;

struct job {
    u64 argument, blocks, turn;
    char entry[64];
};
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

static void give_up(const char *what) {
    fprintf(stderr, "emulate: %s\n", what);
    exit(2);
}

static void run(const job *jobs, u64 count, u8 *image, u32 threads) {
    std::vector<host_block *> blocks;
    std::vector<work> all;
    for (const job *j = jobs; j < jobs + count; j++) {
        auto entry = (void (*)(void *, const void *))dlsym(RTLD_DEFAULT, j->entry);
        if (!entry) give_up("no such kernel");
        for (u32 b = 0; b < j->blocks; b++) {
            host_block *shared = new host_block();
            pthread_barrier_init(&shared->barrier, nullptr, threads);
            blocks.push_back(shared);
            for (u32 i = 0; i < threads; i++)
                all.push_back(work{entry, image + j->argument, {i, threads, b, (u32)j->blocks, shared, 0}});
        }
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    std::vector<pthread_t> running(all.size());
    for (size_t i = 0; i < all.size(); i++)
        if (pthread_create(&running[i], &small, begin, &all[i])) give_up("too many threads");
    for (pthread_t one : running) pthread_join(one, nullptr);
    for (host_block *shared : blocks) {
        pthread_barrier_destroy(&shared->barrier);
        delete shared;
    }
}

int main(int count, char **words) {
    if (count != 4) give_up("expected IMAGE THREADS REPEATS");
    FILE *file = fopen(words[1], "r+b");
    u64 sizes[3];
    if (!file || fread(sizes, sizeof sizes, 1, file) != 1) give_up("cannot read the image");
    std::vector<u64> places(sizes[1]);
    std::vector<job> jobs(sizes[2]);
    u8 *image = (u8 *)mmap(nullptr, sizes[0], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image == MAP_FAILED || fread(places.data(), 8, sizes[1], file) != sizes[1] ||
        fread(jobs.data(), sizeof(job), sizes[2], file) != sizes[2])
        give_up("cannot read the image");
    long at = ftell(file);
    if (fread(image, 1, sizes[0], file) != sizes[0]) give_up("cannot read the image");
    for (u64 place : places) {
        u64 *address = (u64 *)(image + place);
        if (*address) *address += (u64)image;
    }
    for (int repeat = atoi(words[3]); repeat > 0; repeat--)
        for (size_t i = 0, next; i < jobs.size(); i = next) {
            for (next = i; next < jobs.size() && jobs[next].turn == jobs[i].turn; next++) {
            }
            run(&jobs[i], next - i, image, (u32)atoi(words[2]));
        }
    if (fseek(file, at, SEEK_SET) || fwrite(image, 1, sizes[0], file) != sizes[0] || fclose(file))
        give_up("cannot write the image");
    return 0;
}
