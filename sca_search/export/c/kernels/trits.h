#pragma once
#include <stddef.h>

/*
 * Four trits are one printable character: '#' plus a number of four digits in base 3, the first trit in the lowest
 * digit; a digit is 0 for 0, 1 for +1, 2 for -1. The table turns the number into two bits per trit, in the same order.
 */
static const unsigned char two_bits_of[81] = {
    0,   1,   2,   4,   5,   6,   8,   9,   10,  16,  17,  18,  20,  21,  22,  24,  25,  26,  32,  33,  34,
    36,  37,  38,  40,  41,  42,  64,  65,  66,  68,  69,  70,  72,  73,  74,  80,  81,  82,  84,  85,  86,
    88,  89,  90,  96,  97,  98,  100, 101, 102, 104, 105, 106, 128, 129, 130, 132, 133, 134, 136, 137, 138,
    144, 145, 146, 148, 149, 150, 152, 153, 154, 160, 161, 162, 164, 165, 166, 168, 169, 170,
};

static unsigned trits_of(unsigned char character)
{
    return two_bits_of[character - '#'];
}

/* 1 for +1, 2 for -1. */
static unsigned trit_at(const unsigned char *characters, size_t index)
{
    return trits_of(characters[index / 4]) >> 2 * (index % 4) & 3;
}
