#pragma once
#include "integer_pool.h"

#define AVERAGE_SHIFT 16

/* The mean times factor / 2^AVERAGE_SHIFT, to the nearest integer, of two that are equally near the larger. */
static int8_t mean_integer(const int8_t *map, size_t width, struct window rows, struct window columns, int64_t factor)
{
    const int64_t divisor = 2 * ((int64_t)(rows.counted * columns.counted) << AVERAGE_SHIFT);
    int64_t sum = 0, above, mean;
    size_t row, column;
    for (row = rows.begin; row < rows.end; row++) {
        int32_t row_sum = 0;
        for (column = columns.begin; column < columns.end; column++) {
            row_sum += map[row * width + column];
        }
        sum += row_sum;
    }
    above = 2 * sum * factor + divisor / 2;
    mean = above / divisor - (above % divisor < 0); /* rounded down */
    return (int8_t)(mean > 127 ? 127 : mean < -127 ? -127 : mean);
}
