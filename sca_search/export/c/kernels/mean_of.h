#pragma once
#include "pool.h"

/* Row by row, so that the mean of a large map is not one long sum. */
static float mean_of(const float *map, size_t width, struct window rows, struct window columns)
{
    float total = 0.0f;
    size_t row, column;
    for (row = rows.begin; row < rows.end; row++) {
        float sum = 0.0f;
        for (column = columns.begin; column < columns.end; column++) {
            sum += map[row * width + column];
        }
        total += sum;
    }
    return total / (float)(rows.counted * columns.counted);
}
