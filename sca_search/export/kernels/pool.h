#pragma once
#include "lanes.h"

struct pool {
    size_t channels, in_height, in_width, out_height, out_width;
    size_t in_step, out_step; /* from channel to channel, in floats */
    size_t kernel_y, kernel_x, stride_y, stride_x; /* these and the padding are of no use to adaptive pools */
    size_t pad_top, pad_bottom, pad_left, pad_right;
    int count_padding;
};

/* The cells of a window along one side that lie in the map, and how many an average counts. */
struct window {
    size_t begin, end, counted;
};

typedef struct window window_at(const struct pool *pool, size_t index);
typedef float reduce_window(const float *map, size_t width, struct window rows, struct window columns);

INLINE void pool_maps(const struct pool *pool, const float *in, float *out, window_at *rows_at, window_at *columns_at,
                      reduce_window *reduce)
{
    size_t channel, row, column;
    for (channel = 0; channel < pool->channels; channel++) {
        float *to = out;
        for (row = 0; row < pool->out_height; row++) {
            const struct window rows = rows_at(pool, row);
            for (column = 0; column < pool->out_width; column++) {
                *to++ = reduce(in, pool->in_width, rows, columns_at(pool, column));
            }
        }
        in += pool->in_step;
        out += pool->out_step;
    }
}
