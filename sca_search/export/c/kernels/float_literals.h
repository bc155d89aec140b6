#pragma once
#include <string.h>
#include "literals.h"

/* A float of four bytes, the lowest first, on machines of either byte order. */
static float load_float(const unsigned char *bytes)
{
    const uint32_t bits = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                          (uint32_t)bytes[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
