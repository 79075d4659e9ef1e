/* Memory of a GPU beside that of the host: copies by its driver, and what its kernels ask of the proxy. */

#ifndef COLLSYN_DEVICE_H
#define COLLSYN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* Calls of the driver, on a stream that waits for no kernel. Whichever thread calls first is made one of the GPU's. */
typedef struct {
    int (*enter)(void *context);
    int (*copy)(uint64_t to, uint64_t from, size_t count, void *stream);
    int (*wait)(void *stream);
    void *context, *stream;
} device_calls;

/* Copies between any two places and waits for it; the driver's code, 0 if all went well. */
int collsyn_device_copy(void *with, void *to, const void *from, int64_t count) {
    static __thread const void *entered;
    const device_calls *calls = (const device_calls *)with;
    int code = entered == calls->context ? 0 : calls->enter(calls->context);
    if (code) return code;
    entered = calls->context;
    code = calls->copy((uint64_t)to, (uint64_t)from, (size_t)count, calls->stream);
    return code ? code : calls->wait(calls->stream);
}

/* As in cuda/device/launch.cuh: one channel of a kernel writes requests and then `head`; the proxy counts those it has
 * `taken`, and in `answered` those whose data has left the kernel's memory, or has come into it. */
enum { LANE_ROOM = 8 };

typedef struct {
    uint32_t kind, peer; /* SEND, RAISE or FETCH, as in job.h */
    uint64_t place;      /* in the peer's region */
    uint64_t address;    /* in this rank's memory */
    uint64_t count;
    uint64_t value;
    uint64_t pad[3];
} request;

typedef struct {
    uint64_t head;
    uint64_t pad[7];
    uint64_t taken, answered;
    uint64_t pad2[6];
    request requests[LANE_ROOM];
} lane;

#endif
