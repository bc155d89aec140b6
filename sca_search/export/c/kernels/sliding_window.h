#pragma once
#include "window.h"

static struct window slide(size_t begin, size_t kernel, size_t before, size_t size, size_t after, int count_padding)
{
    const size_t end = begin + kernel, all = before + size + after; /* counted from the border's edge */
    struct window window;
    window.begin = begin > before ? begin - before : 0;
    window.end = end < before + size ? end - before : size;
    window.counted = count_padding ? (end < all ? end : all) - begin : window.end - window.begin;
    return window;
}

static struct window sliding_rows(const struct pool *pool, size_t index)
{
    return slide(index * pool->stride_y, pool->kernel_y, pool->pad_top, pool->in_height, pool->pad_bottom,
                 pool->count_padding);
}

static struct window sliding_columns(const struct pool *pool, size_t index)
{
    return slide(index * pool->stride_x, pool->kernel_x, pool->pad_left, pool->in_width, pool->pad_right,
                 pool->count_padding);
}
