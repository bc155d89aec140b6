#pragma once
#include "pool.h"

static float largest_in(const float *map, size_t width, struct window rows, struct window columns)
{
    float largest = map[rows.begin * width + columns.begin];
    size_t row, column;
    for (row = rows.begin; row < rows.end; row++) {
        for (column = columns.begin; column < columns.end; column++) {
            const float value = map[row * width + column];
            largest = value > largest ? value : largest;
        }
    }
    return largest;
}
