#pragma once
#include <stdint.h>
#include "window.h"

typedef int8_t reduce_integers(const int8_t *map, size_t width, struct window rows, struct window columns,
                               int64_t factor);

static void pool_integers(const struct pool *pool, const int8_t *in, int8_t *out, window_at *rows_at,
                          window_at *columns_at, reduce_integers *reduce, int64_t factor)
{
    size_t channel, row, column;
    for (channel = 0; channel < pool->channels; channel++) {
        for (row = 0; row < pool->out_height; row++) {
            const struct window rows = rows_at(pool, row);
            for (column = 0; column < pool->out_width; column++) {
                *out++ = reduce(in, pool->in_width, rows, columns_at(pool, column), factor);
            }
        }
        in += pool->in_step;
    }
}
