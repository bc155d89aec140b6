#pragma once
#include <stddef.h>

struct pool {
    size_t channels, in_height, in_width, out_height, out_width;
    size_t in_row, out_row;   /* from row to row, */
    size_t in_step, out_step; /* and from channel to channel, in cells */
    int bordered;             /* the outputs' maps, see clear_border.c */
    size_t kernel_y, kernel_x, stride_y, stride_x; /* these and the padding are of no use to adaptive pools */
    size_t pad_top, pad_bottom, pad_left, pad_right;
    int count_padding;
};

/* The cells of a window along one side that lie in the map, and the number in the divisor of an average. */
struct window {
    size_t begin, end, counted;
};

typedef struct window window_at(const struct pool *pool, size_t index);
