/* Element types and the four operations, to the bit as the host's executors have them (docs/runtime.md): half types are
 * computed in float and rounded to nearest even each time, integers wrap, min and max take one operand as it is, the
 * first where it is better or a NaN. */

#ifndef COLLSYN_ELEMENTS_CUH
#define COLLSYN_ELEMENTS_CUH

#include "shim.cuh"

namespace collsyn {

enum : u32 { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32, INT64, UINT8 };
enum : u32 { SUM, PROD, MIN, MAX };

template <typename To, typename From>
COLLSYN_FN To bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    union {
        From from;
        To to;
    } both = {value};
    return both.to;
}

#ifdef COLLSYN_GPU
COLLSYN_FN float widen_half(u16 half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
COLLSYN_FN u16 narrow_half(float value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
#else
COLLSYN_FN float widen_half(u16 half) {
    u32 sign = (u32)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest < 0x400) {
        /* Subnormal: so many steps of 2^-24. */
        float small = (float)rest * 0x1p-24f;
        return sign ? -small : small;
    }
    u32 exponent = rest >= 0x7c00 ? 0x70000000u : 0x38000000u;
    return bits<float>(sign | ((rest << 13) + exponent));
}
COLLSYN_FN u16 narrow_half(float value) {
    u32 all = bits<u32>(value), sign = all >> 16 & 0x8000u, rest = all & 0x7fffffffu;
    if (rest > 0x7f800000u) return (u16)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) return (u16)(sign | 0x7c00u);
    if (rest < 0x38800000u) {
        /* The sum with 0.5 rounds to a multiple of 2^-24, which then stands in the lowest bits. */
        float moved = bits<float>(rest) + 0.5f;
        return (u16)(sign | (bits<u32>(moved) - 0x3f000000u));
    }
    return (u16)(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13));
}
#endif

COLLSYN_FN float widen_bfloat(u16 half) { return bits<float>((u32)half << 16); }
COLLSYN_FN u16 narrow_bfloat(float value) {
    u32 all = bits<u32>(value);
    if (value != value) return (u16)(all >> 16 | 0x40u);
    return (u16)((all + 0x7fffu + (all >> 16 & 1u)) >> 16);
}

/* stored: as in memory; number: what is compared and divided; summand: what is added and multiplied. */
template <u32 DTYPE>
struct element;

template <typename Stored, typename Number, typename Summand>
struct plain_element {
    using stored = Stored;
    using number = Number;
    using summand = Summand;
    COLLSYN_FN Number load(Stored value) { return (Number)value; }
    COLLSYN_FN Stored store(Summand value) { return (Stored)value; }
    COLLSYN_FN Stored quotient(Stored value, u32 divisor) { return (Stored)((Number)value / (Number)divisor); }
};
template <>
struct element<FLOAT32> : plain_element<float, float, float> {};
template <>
struct element<FLOAT64> : plain_element<double, double, double> {};
template <>
struct element<INT32> : plain_element<i32, i64, u32> {};
template <>
struct element<INT64> : plain_element<i64, i64, u64> {};
template <>
struct element<UINT8> : plain_element<u8, i32, u32> {};
template <>
struct element<FLOAT16> {
    using stored = u16;
    using number = float;
    using summand = float;
    COLLSYN_FN float load(u16 value) { return widen_half(value); }
    COLLSYN_FN u16 store(float value) { return narrow_half(value); }
    COLLSYN_FN u16 quotient(u16 value, u32 divisor) { return store(load(value) / (float)divisor); }
};
template <>
struct element<BFLOAT16> {
    using stored = u16;
    using number = float;
    using summand = float;
    COLLSYN_FN float load(u16 value) { return widen_bfloat(value); }
    COLLSYN_FN u16 store(float value) { return narrow_bfloat(value); }
    COLLSYN_FN u16 quotient(u16 value, u32 divisor) { return store(load(value) / (float)divisor); }
};

/* a (+) b of stored elements. */
template <u32 DTYPE, u32 OP>
COLLSYN_FN typename element<DTYPE>::stored combine(
    typename element<DTYPE>::stored a, typename element<DTYPE>::stored b) {
    using e = element<DTYPE>;
    typename e::number x = e::load(a), y = e::load(b);
    if (OP == SUM) return e::store((typename e::summand)x + (typename e::summand)y);
    if (OP == PROD) return e::store((typename e::summand)x * (typename e::summand)y);
    bool first = (OP == MIN ? x < y : x > y) || x != x;
    return first ? a : b;
}

}  // namespace collsyn

#endif
