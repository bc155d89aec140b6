#pragma once
#include "lanes.h"

/*
 * Sums as values on another scale: (sum * factor + bias + other * residual) >> shift, rounded down. The bias has half a
 * unit in it. The shift of a number below zero must be arithmetic, as it is with all compilers that are known here.
 * Beyond the sums' limits the result is the lowest or the highest in any case; between them 32 bits are enough.
 */
struct requantize {
    int32_t factor, bias, other, lowest_sum, highest_sum;
    int shift;
};

/* A value, clipped to the limits of the activation. */
struct integer_limits {
    int32_t lowest, highest;
};

INLINE int32_t between(int32_t lowest, int32_t value, int32_t highest)
{
    return value < lowest ? lowest : value > highest ? highest : value;
}

INLINE int8_t requantized(const struct requantize *to, struct integer_limits limits, int32_t sum, int32_t residual)
{
    const int32_t near = between(to->lowest_sum, sum, to->highest_sum);
    const int32_t value = (near * to->factor + to->bias + residual * to->other) >> to->shift;
    return (int8_t)between(limits.lowest, value, limits.highest);
}

/* Scratch memory is declared as floats: integers in it are read and written as bytes. */
INLINE int32_t load_sum(const int32_t *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store_sum(int32_t *to, int32_t value)
{
    memcpy(to, &value, sizeof value);
}
