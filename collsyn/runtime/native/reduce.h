/* Reductions and the division of avg, one simple loop for each element type and operation.
 *
 * Results equal those of the NumPy reference bit for bit (tests compare them), NaN payloads of sums and products aside:
 * half types are widened to float, combined, and rounded to nearest even each time; integers wrap; min and max give NaN
 * where either operand is one. Operands may be the same memory as the destination but never overlap it shifted, which
 * is what the ivdep pragma tells the compiler. */

#ifndef COLLSYN_REDUCE_H
#define COLLSYN_REDUCE_H

#include <stdint.h>
#include <string.h>

#ifdef __clang__
#define NO_CARRIED_DEPENDENCY _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_CARRIED_DEPENDENCY _Pragma("GCC ivdep")
#endif

enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32, INT64, UINT8, NUM_DTYPES };
enum { SUM, PROD, MIN, MAX, NUM_OPS };

typedef void reduce_kernel(void *dst, const void *src, const void *src2, int64_t count);
typedef void divide_kernel(void *data, int64_t count, int64_t divisor);

#define SUM_OF(a, b) ((a) + (b))
#define PROD_OF(a, b) ((a) * (b))
/* `x != x` holds for NaN alone, so that a NaN on either side wins. */
#define MIN_OF(a, b) (((a) < (b) || (a) != (a)) ? (a) : (b))
#define MAX_OF(a, b) (((a) > (b) || (a) != (a)) ? (a) : (b))

/* T is the stored type, W the type that is computed in, LOAD and STORE go between them. */
#define REDUCE(NAME, T, W, LOAD, STORE, EXPRESSION)                                          \
    static void NAME(void *dst, const void *src, const void *src2, int64_t count) {          \
        T *to = (T *)dst;                                                                    \
        const T *left = (const T *)src, *right = (const T *)src2;                            \
        NO_CARRIED_DEPENDENCY                                                                \
        for (int64_t i = 0; i < count; i++) {                                                \
            W a = LOAD(left[i]), b = LOAD(right[i]);                                         \
            to[i] = STORE(EXPRESSION(a, b));                                                 \
        }                                                                                    \
    }

#define DIVIDE(NAME, T, W, LOAD, STORE)                                                      \
    static void NAME(void *data, int64_t count, int64_t divisor) {                           \
        T *to = (T *)data;                                                                   \
        W by = (W)divisor;                                                                   \
        for (int64_t i = 0; i < count; i++) to[i] = STORE((LOAD(to[i])) / by);               \
    }

#define ALL_KERNELS(NAME, T, W, LOAD, STORE)                                                 \
    REDUCE(NAME##_sum, T, W, LOAD, STORE, SUM_OF)                                            \
    REDUCE(NAME##_prod, T, W, LOAD, STORE, PROD_OF)                                          \
    REDUCE(NAME##_min, T, W, LOAD, STORE, MIN_OF)                                            \
    REDUCE(NAME##_max, T, W, LOAD, STORE, MAX_OF)                                            \
    DIVIDE(NAME##_divide, T, W, LOAD, STORE)

#define AS_IS(x) (x)

/* Signed overflow is undefined in C, so sums and products are taken unsigned; order and division need the sign. */
#define INTEGER_KERNELS(NAME, T, U)                                                          \
    REDUCE(NAME##_sum, U, U, AS_IS, AS_IS, SUM_OF)                                           \
    REDUCE(NAME##_prod, U, U, AS_IS, AS_IS, PROD_OF)                                         \
    REDUCE(NAME##_min, T, T, AS_IS, AS_IS, MIN_OF)                                           \
    REDUCE(NAME##_max, T, T, AS_IS, AS_IS, MAX_OF)                                           \
    DIVIDE(NAME##_divide, T, int64_t, AS_IS, (T))

static inline float bfloat16_load(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t bfloat16_store(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)(value != value ? quiet : rounded);
}

ALL_KERNELS(float32, float, float, AS_IS, AS_IS)
ALL_KERNELS(float64, double, double, AS_IS, AS_IS)
ALL_KERNELS(bfloat16, uint16_t, float, bfloat16_load, bfloat16_store)
INTEGER_KERNELS(int32, int32_t, uint32_t)
INTEGER_KERNELS(int64, int64_t, uint64_t)
INTEGER_KERNELS(uint8, uint8_t, uint8_t)

#if defined(__F16C__) && !defined(__AVX512FP16__)
/* Compilers do not use the conversion instructions for arrays on their own: a block of halves is widened to floats,
 * combined by the float kernels, and narrowed again. */
#include <immintrin.h>

enum { HALF_BLOCK = 512 };

static void widen(float *to, const uint16_t *from, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < count; i++) to[i] = _cvtsh_ss(from[i]);
}

static void narrow(uint16_t *to, const float *from, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}

#define FLOAT16_KERNEL(NAME, OF_FLOATS)                                                      \
    static void NAME(void *dst, const void *src, const void *src2, int64_t count) {          \
        uint16_t *to = (uint16_t *)dst;                                                      \
        const uint16_t *left = (const uint16_t *)src, *right = (const uint16_t *)src2;       \
        float a[HALF_BLOCK], b[HALF_BLOCK];                                                  \
        for (int64_t i = 0; i < count; i += HALF_BLOCK) {                                    \
            int64_t part = count - i < HALF_BLOCK ? count - i : HALF_BLOCK;                  \
            widen(a, left + i, part);                                                        \
            widen(b, right + i, part);                                                       \
            OF_FLOATS(a, a, b, part);                                                        \
            narrow(to + i, a, part);                                                         \
        }                                                                                    \
    }

FLOAT16_KERNEL(float16_sum, float32_sum)
FLOAT16_KERNEL(float16_prod, float32_prod)
FLOAT16_KERNEL(float16_min, float32_min)
FLOAT16_KERNEL(float16_max, float32_max)

static void float16_divide(void *data, int64_t count, int64_t divisor) {
    uint16_t *to = (uint16_t *)data;
    float a[HALF_BLOCK];
    for (int64_t i = 0; i < count; i += HALF_BLOCK) {
        int64_t part = count - i < HALF_BLOCK ? count - i : HALF_BLOCK;
        widen(a, to + i, part);
        float32_divide(a, part, divisor);
        narrow(to + i, a, part);
    }
}
#elif defined(__FLT16_MANT_DIG__)
ALL_KERNELS(float16, _Float16, float, (float), (_Float16))
#else
#error "this compiler has no 16-bit float"
#endif

#define ROW(NAME) {NAME##_sum, NAME##_prod, NAME##_min, NAME##_max}

static reduce_kernel *const REDUCE_KERNELS[NUM_DTYPES][NUM_OPS] = {
    ROW(float32), ROW(float64), ROW(float16), ROW(bfloat16), ROW(int32), ROW(int64), ROW(uint8),
};

static divide_kernel *const DIVIDE_KERNELS[NUM_DTYPES] = {
    float32_divide, float64_divide, float16_divide, bfloat16_divide, int32_divide, int64_divide, uint8_divide,
};

#endif
