#pragma once
#include "integer_pool.h"

static int8_t largest_integer(const int8_t *map, size_t width, struct window rows, struct window columns,
                              int64_t factor)
{
    int8_t largest = map[rows.begin * width + columns.begin];
    size_t row, column;
    (void)factor;
    for (row = rows.begin; row < rows.end; row++) {
        for (column = columns.begin; column < columns.end; column++) {
            const int8_t value = map[row * width + column];
            largest = value > largest ? value : largest;
        }
    }
    return largest;
}
