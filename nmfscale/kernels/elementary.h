/* The logarithm and the exponential of one number, by the operations of `vlog` and `vexp` in simd.h, but without fused
 * multiply-add: those of the C library differ between systems. */
#ifndef NMFSCALE_ELEMENTARY_H
#define NMFSCALE_ELEMENTARY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline double with_exponent(double x, int64_t more)   /* x 2^more */
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits += more * ((int64_t)1 << 52);
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static inline double logarithm(double x)                     /* of a positive normal number */
{
    const int64_t middle = 0x3fe6a09e667f3bcdLL;             /* sqrt(1 / 2) */
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int64_t e = (bits - middle) >> 52;
    const double m = with_exponent(x, -e), s = (m - 1) / (m + 1), z = s * s;
    double p = 2.0 / 19;
    for (int i = 17; i >= 1; i -= 2)
        p = p * z + 2.0 / i;
    return (double)e * 0.69314718055994530942 + s * p;
}

static inline double exponential(double x)                   /* of x < 709 */
{
    if (!(x >= -708))
        return x == x ? 0 : x;
    const double n = rint(x * 1.44269504088896340736);
    const double r = (x - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10;
    double p = 1;
    for (int i = 13; i >= 1; i--)
        p = p * (r / i) + 1;
    return with_exponent(p, (int64_t)n);
}

#endif
