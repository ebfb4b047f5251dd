/* SPDX-License-Identifier: 0BSD */
/* Arithmetic that gcc calls on an LX106. Debian's libgcc leaves out what is in the ROM of an ESP8266: products and
 * quotients, and floats, here as IEEE 754 has them, rounded to nearest, ties to even. Floats are passed as their bits.
 * mcugen counts functions named soft_… as a part of their callers (mcugen/simulation/xtensa.py). */
#include <stdint.h>

int64_t __muldi3(int64_t a, int64_t b);
uint64_t __umulsidi3(uint32_t a, uint32_t b);
uint32_t __udivsi3(uint32_t n, uint32_t d);
uint32_t __umodsi3(uint32_t n, uint32_t d);
int32_t __divsi3(int32_t n, int32_t d);
uint64_t __udivmoddi4(uint64_t n, uint64_t d, uint64_t *rest);
uint64_t __udivdi3(uint64_t n, uint64_t d);
uint64_t __umoddi3(uint64_t n, uint64_t d);
int64_t __divdi3(int64_t n, int64_t d);
uint32_t __addsf3(uint32_t a, uint32_t b);
uint32_t __subsf3(uint32_t a, uint32_t b);
uint32_t __mulsf3(uint32_t a, uint32_t b);
uint32_t __floatsisf(int32_t n);
uint32_t __floatunsisf(uint32_t n);
uint32_t __fixunssfsi(uint32_t a);
uint64_t __adddf3(uint64_t a, uint64_t b);
uint64_t __subdf3(uint64_t a, uint64_t b);
uint64_t __muldf3(uint64_t a, uint64_t b);
uint64_t __divdf3(uint64_t a, uint64_t b);
uint64_t __floatsidf(int32_t n);
uint64_t __floatunsidf(uint32_t n);
int32_t __fixdfsi(uint64_t a);
uint32_t __fixunsdfsi(uint64_t a);
uint64_t __extendsfdf2(uint32_t a);
uint32_t __truncdfsf2(uint64_t a);

/* Four products of 16 bits, for the CPU has no upper half of a product of 32 bits. */
uint64_t __umulsidi3(uint32_t a, uint32_t b) {
    const uint32_t a_low = a & 0xffffu, a_high = a >> 16, b_low = b & 0xffffu, b_high = b >> 16;
    const uint32_t low = a_low * b_low, middle = a_high * b_low + (low >> 16);
    const uint32_t other = a_low * b_high + (middle & 0xffffu);
    const uint32_t high = a_high * b_high + (middle >> 16) + (other >> 16);
    return (uint64_t)high << 32 | (other << 16 | (low & 0xffffu));
}

int64_t __muldi3(int64_t a, int64_t b) {
    const uint32_t a_low = (uint32_t)a, b_low = (uint32_t)b;
    const uint64_t product = __umulsidi3(a_low, b_low);
    const uint32_t cross = a_low * (uint32_t)((uint64_t)b >> 32) + b_low * (uint32_t)((uint64_t)a >> 32);
    return (int64_t)((uint64_t)((uint32_t)(product >> 32) + cross) << 32 | (uint32_t)product);
}

static uint32_t soft_divide(uint32_t n, uint32_t d, uint32_t *rest) {
    uint32_t quotient = 0;
    if (d != 0 && n >= d) {
        int shift = __builtin_clz(d) - __builtin_clz(n);
        for (d <<= shift; shift >= 0; shift--, d >>= 1) {
            quotient <<= 1;
            if (n >= d) {
                n -= d;
                quotient |= 1u;
            }
        }
    }
    *rest = n;
    return quotient;
}

uint32_t __udivsi3(uint32_t n, uint32_t d) {
    uint32_t rest;
    return soft_divide(n, d, &rest);
}

uint32_t __umodsi3(uint32_t n, uint32_t d) {
    uint32_t rest;
    soft_divide(n, d, &rest);
    return rest;
}

int32_t __divsi3(int32_t n, int32_t d) {
    const uint32_t quotient = __udivsi3(n < 0 ? 0u - (uint32_t)n : (uint32_t)n, d < 0 ? 0u - (uint32_t)d : (uint32_t)d);
    return (int32_t)((n ^ d) < 0 ? 0u - quotient : quotient);
}

uint64_t __udivdi3(uint64_t n, uint64_t d) {
    uint64_t rest;
    return __udivmoddi4(n, d, &rest);
}

uint64_t __umoddi3(uint64_t n, uint64_t d) {
    uint64_t rest;
    __udivmoddi4(n, d, &rest);
    return rest;
}

int64_t __divdi3(int64_t n, int64_t d) {
    const uint64_t quotient = __udivdi3(n < 0 ? 0u - (uint64_t)n : (uint64_t)n, d < 0 ? 0u - (uint64_t)d : (uint64_t)d);
    return (int64_t)((n ^ d) < 0 ? 0u - quotient : quotient);
}

/* A format: stored bits of a significand, and the largest exponent field. */
struct format {
    int bits, top;
};
static const struct format SINGLE = {23, 255}, DOUBLE = {52, 2047};

enum kind { FINITE, INFINITE, NOT_A_NUMBER };

/* significand * 2^exponent */
struct number {
    enum kind kind;
    uint32_t negative;
    int exponent;
    uint64_t significand;
};

static struct number soft_unpacked(uint64_t a, const struct format *f) {
    const uint64_t fraction = a & ((UINT64_C(1) << f->bits) - 1u);
    const int field = (int)(a >> f->bits) & f->top;
    struct number n = {FINITE, (uint32_t)(a >> f->bits) > (uint32_t)f->top, field, fraction};
    if (field == f->top) {
        n.kind = fraction != 0 ? NOT_A_NUMBER : INFINITE;
    } else if (field != 0) {
        n.significand |= UINT64_C(1) << f->bits;
    } else if (fraction != 0) { /* a small number gets its first bit where others have it */
        for (n.exponent = 1; n.significand >> f->bits == 0; n.exponent--) {
            n.significand <<= 1;
        }
    }
    n.exponent -= f->top / 2 + f->bits;
    return n;
}

static uint64_t soft_shifted_right(uint64_t a, int shift) { /* what is lost is kept in the lowest bit */
    if (shift <= 0) {
        return a;
    }
    return shift > 63 ? a != 0 : a >> shift | ((a << (64 - shift)) != 0);
}

static uint64_t soft_packed(const struct number *n, const struct format *f) {
    const uint64_t sign = (uint64_t)n->negative << f->bits, infinity = (uint64_t)(uint32_t)f->top << f->bits;
    const uint64_t signs = sign * (uint64_t)((uint32_t)f->top + 1u);
    uint64_t m = n->significand;
    if (n->kind == NOT_A_NUMBER) {
        return infinity | UINT64_C(1) << (f->bits - 1);
    }
    if (n->kind == INFINITE) {
        return signs | infinity;
    }
    if (m == 0) {
        return signs;
    }
    const int lead = m >> 32 != 0 ? __builtin_clz((uint32_t)(m >> 32)) : 32 + __builtin_clz((uint32_t)m);
    int field = n->exponent + 63 - lead + f->top / 2; /* of a number whose first bit is bit 63 */
    int drop = 63 - f->bits;
    if (field >= f->top) {
        return signs | infinity;
    }
    m <<= lead;
    if (field <= 0) {
        m = soft_shifted_right(m, 1 - field);
        field = 1;
    }
    const uint64_t half = UINT64_C(1) << (drop - 1), lost = m & (2u * half - 1u);
    m >>= drop;
    m += lost > half || (lost == half && (m & 1u) != 0);
    /* The first bit of m adds to the field below, as does a carry of the rounding. */
    return signs | (((uint64_t)(uint32_t)(field - 1) << f->bits) + m);
}

static uint64_t soft_sum(uint64_t a, uint64_t b, uint32_t flip, const struct format *f) {
    struct number x = soft_unpacked(a, f), y = soft_unpacked(b, f);
    y.negative ^= flip;
    if (x.kind != FINITE || y.kind != FINITE) {
        const int none = x.kind == NOT_A_NUMBER || y.kind == NOT_A_NUMBER
            || (x.kind == y.kind && x.negative != y.negative);
        struct number n = x.kind == INFINITE ? x : y;
        n.kind = none ? NOT_A_NUMBER : INFINITE;
        return soft_packed(&n, f);
    }
    if (x.exponent < y.exponent) {
        const struct number other = x;
        x = y;
        y = other;
    }
    x.significand <<= 8; /* room for what is lost: two bits behind the last one are enough */
    y.significand = soft_shifted_right(y.significand << 8, x.exponent - y.exponent);
    x.exponent -= 8;
    if (x.negative == y.negative) {
        x.significand += y.significand;
    } else if (x.significand >= y.significand) {
        x.significand -= y.significand;
        x.negative = x.significand != 0 ? x.negative : 0u; /* a difference of 0 is positive */
    } else {
        x.significand = y.significand - x.significand;
        x.negative = y.negative;
    }
    return soft_packed(&x, f);
}

static uint64_t soft_product(uint64_t a, uint64_t b, const struct format *f) {
    const struct number x = soft_unpacked(a, f), y = soft_unpacked(b, f);
    struct number n = {FINITE, x.negative ^ y.negative, x.exponent + y.exponent + 64, 0};
    if (x.kind != FINITE || y.kind != FINITE) {
        const int zero = (x.kind == FINITE && x.significand == 0) || (y.kind == FINITE && y.significand == 0);
        n.kind = x.kind == NOT_A_NUMBER || y.kind == NOT_A_NUMBER || zero ? NOT_A_NUMBER : INFINITE;
        return soft_packed(&n, f);
    }
    /* The upper 64 bits of 128, and whether there is something below. */
    const int shift = 63 - f->bits;
    const uint64_t p = x.significand << shift, q = y.significand << shift;
    const uint32_t p0 = (uint32_t)p, p1 = (uint32_t)(p >> 32), q0 = (uint32_t)q, q1 = (uint32_t)(q >> 32);
    const uint64_t low = __umulsidi3(p0, q0), middle = __umulsidi3(p1, q0) + (low >> 32);
    const uint64_t other = __umulsidi3(p0, q1) + (uint32_t)middle;
    n.significand = __umulsidi3(p1, q1) + (middle >> 32) + (other >> 32);
    n.significand |= ((uint32_t)other | (uint32_t)low) != 0;
    n.exponent -= 2 * shift;
    return soft_packed(&n, f);
}

static uint64_t soft_quotient(uint64_t a, uint64_t b, const struct format *f) {
    const struct number x = soft_unpacked(a, f), y = soft_unpacked(b, f);
    struct number n = {FINITE, x.negative ^ y.negative, x.exponent - y.exponent, 0};
    if (x.kind != FINITE || y.kind != FINITE || y.significand == 0) {
        const int none = x.kind == NOT_A_NUMBER || y.kind == NOT_A_NUMBER
            || (x.kind == INFINITE && y.kind == INFINITE)
            || (y.kind == FINITE && x.kind == FINITE && x.significand == 0);
        if (y.kind == INFINITE && x.kind == FINITE) {
            return soft_packed(&n, f);
        }
        n.kind = none ? NOT_A_NUMBER : INFINITE;
        return soft_packed(&n, f);
    }
    uint64_t rest = x.significand, divisor = y.significand;
    if (rest == 0) {
        return soft_packed(&n, f);
    }
    while (rest < divisor) {
        rest <<= 1;
        n.exponent--;
    }
    while (rest >= divisor << 1) {
        divisor <<= 1;
        n.exponent++;
    }
    for (int bit = 0; bit < 60; bit++) {
        n.significand <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            n.significand |= 1u;
        }
        rest <<= 1;
    }
    n.significand = n.significand << 1 | (rest != 0);
    n.exponent -= 60;
    return soft_packed(&n, f);
}

static uint64_t soft_from_integer(uint32_t magnitude, uint32_t negative, const struct format *f) {
    const struct number n = {FINITE, negative, 0, magnitude};
    return soft_packed(&n, f);
}

static uint32_t soft_to_integer(uint64_t a, const struct format *f) {
    const struct number n = soft_unpacked(a, f);
    const uint64_t magnitude = n.exponent < 0 ? (n.exponent < -63 ? 0 : n.significand >> -n.exponent)
                                              : n.significand << (n.exponent & 31);
    return n.negative != 0 ? 0u - (uint32_t)magnitude : (uint32_t)magnitude;
}

static int soft_is_normal(uint32_t a) {
    return (((a >> 23) + 1u) & 0xffu) > 1u;
}

/* A significand with its first bit in bit 31, rounded; `exponent` is the field of the result, 1 to 254. */
static uint32_t soft_rounded(uint32_t sign, uint32_t exponent, uint32_t m) {
    const uint32_t lost = m & 0xffu;
    m >>= 8;
    m += lost > 0x80u || (lost == 0x80u && (m & 1u) != 0);
    return sign | (((exponent - 1u) << 23) + m);
}

/* Both functions have a short way for normal numbers, which nearly all are. */
uint32_t __addsf3(uint32_t a, uint32_t b) {
    if (soft_is_normal(a) && soft_is_normal(b)) {
        if ((a & 0x7fffffffu) < (b & 0x7fffffffu)) {
            const uint32_t other = a;
            a = b;
            b = other;
        }
        const uint32_t exponent = (a >> 23) & 0xffu, shift = exponent - ((b >> 23) & 0xffu);
        const uint32_t m = ((a << 7) & 0x3fffff80u) | 0x40000000u, n = ((b << 7) & 0x3fffff80u) | 0x40000000u;
        const uint32_t small = shift > 31 ? 1u : n >> shift | ((n & ((1u << shift) - 1u)) != 0);
        const uint32_t total = (int32_t)(a ^ b) < 0 ? m - small : m + small;
        if (total == 0) {
            return 0;
        }
        const uint32_t lead = (uint32_t)__builtin_clz(total);
        if (exponent + 1u > lead && exponent + 1u - lead < 255u) {
            return soft_rounded(a & 0x80000000u, exponent + 1u - lead, total << lead);
        }
    }
    return (uint32_t)soft_sum(a, b, 0, &SINGLE);
}

uint32_t __subsf3(uint32_t a, uint32_t b) {
    return __addsf3(a, b ^ 0x80000000u);
}

uint32_t __mulsf3(uint32_t a, uint32_t b) {
    const uint32_t exponent = ((a >> 23) & 0xffu) + ((b >> 23) & 0xffu) - 126u;
    if (soft_is_normal(a) && soft_is_normal(b) && exponent - 2u < 252u) {
        const uint64_t m = __umulsidi3((a << 8) | 0x80000000u, (b << 8) | 0x80000000u);
        const uint32_t high = (uint32_t)(m >> 32), low = (uint32_t)m, sign = (a ^ b) & 0x80000000u;
        if ((int32_t)high < 0) {
            return soft_rounded(sign, exponent, high | (low != 0));
        }
        return soft_rounded(sign, exponent - 1u, (high << 1) | (low >> 31) | (low << 1 != 0));
    }
    return (uint32_t)soft_product(a, b, &SINGLE);
}

uint32_t __floatsisf(int32_t n) {
    return (uint32_t)soft_from_integer(n < 0 ? 0u - (uint32_t)n : (uint32_t)n, n < 0, &SINGLE);
}

uint32_t __floatunsisf(uint32_t n) {
    return (uint32_t)soft_from_integer(n, 0, &SINGLE);
}

uint32_t __fixunssfsi(uint32_t a) {
    return soft_to_integer(a, &SINGLE);
}

uint64_t __adddf3(uint64_t a, uint64_t b) {
    return soft_sum(a, b, 0, &DOUBLE);
}

uint64_t __subdf3(uint64_t a, uint64_t b) {
    return soft_sum(a, b, 1, &DOUBLE);
}

uint64_t __muldf3(uint64_t a, uint64_t b) {
    return soft_product(a, b, &DOUBLE);
}

uint64_t __divdf3(uint64_t a, uint64_t b) {
    return soft_quotient(a, b, &DOUBLE);
}

uint64_t __floatsidf(int32_t n) {
    return soft_from_integer(n < 0 ? 0u - (uint32_t)n : (uint32_t)n, n < 0, &DOUBLE);
}

uint64_t __floatunsidf(uint32_t n) {
    return soft_from_integer(n, 0, &DOUBLE);
}

int32_t __fixdfsi(uint64_t a) {
    return (int32_t)soft_to_integer(a, &DOUBLE);
}

uint32_t __fixunsdfsi(uint64_t a) {
    return soft_to_integer(a, &DOUBLE);
}

uint64_t __extendsfdf2(uint32_t a) {
    const struct number n = soft_unpacked(a, &SINGLE);
    return soft_packed(&n, &DOUBLE);
}

uint32_t __truncdfsf2(uint64_t a) {
    const struct number n = soft_unpacked(a, &DOUBLE);
    return (uint32_t)soft_packed(&n, &SINGLE);
}
