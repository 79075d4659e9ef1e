/* Copies, past the caches where the data would not stay in them anyway: a store that does not first fetch the line it
 * overwrites saves a third of the memory traffic. */

#ifndef COLLSYN_COPY_H
#define COLLSYN_COPY_H

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64, SHORT = 4096 };

/* Whole lines; the destination begins one. */
static void stream_lines(char *dst, const char *src, int64_t count) {
    for (int64_t i = 0; i < count; i += LINE) {
        const __m128i *from = (const __m128i *)(src + i);
        __m128i *to = (__m128i *)(dst + i);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
}

/* Ranges that do not overlap. The fence puts the stores before whatever is signalled next. */
static void stream_copy(void *dst, const void *src, int64_t count) {
    char *to = (char *)dst;
    const char *from = (const char *)src;
    if (count < SHORT) {
        memcpy(to, from, (size_t)count);
        return;
    }
    int64_t head = (int64_t)(-(uintptr_t)to % LINE), lines = (count - head) / LINE * LINE;
    memcpy(to, from, (size_t)head);
    stream_lines(to + head, from + head, lines);
    memcpy(to + head + lines, from + head + lines, (size_t)(count - head - lines));
    _mm_sfence();
}

#else
static void stream_copy(void *dst, const void *src, int64_t count) { memmove(dst, src, (size_t)count); }
#endif

static int overlap(const void *a, const void *b, int64_t count) {
    return (const char *)a < (const char *)b + count && (const char *)b < (const char *)a + count;
}

static void copy(void *dst, const void *src, int64_t count, int stream) {
    if (dst == src) return;
    if (stream && !overlap(dst, src, count))
        stream_copy(dst, src, count);
    else
        memmove(dst, src, (size_t)count);
}

#endif
