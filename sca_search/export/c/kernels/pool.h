#pragma once
#include "lanes.h"
#include "window.h"

typedef float reduce_window(const float *map, size_t width, struct window rows, struct window columns);

INLINE void pool_maps(const struct pool *pool, const float *in, float *out, window_at *rows_at, window_at *columns_at,
                      reduce_window *reduce)
{
    size_t channel, row, column;
    for (channel = 0; channel < pool->channels; channel++) {
        for (row = 0; row < pool->out_height; row++) {
            const struct window rows = rows_at(pool, row);
            if (pool->bordered) {
                clear_behind(out + row * pool->out_row + pool->out_width);
            }
            for (column = 0; column < pool->out_width; column++) {
                out[row * pool->out_row + column] = reduce(in, pool->in_row, rows, columns_at(pool, column));
            }
        }
        in += pool->in_step;
        out += pool->out_step;
    }
}
