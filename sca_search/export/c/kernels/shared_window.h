#pragma once
#include "window.h"

/* Window `index` of `parts` over `size` cells; neighbors overlap if the parts do not divide the size. */
static struct window share(size_t index, size_t size, size_t parts)
{
    struct window window;
    window.begin = index * size / parts;
    window.end = ((index + 1) * size + parts - 1) / parts;
    window.counted = window.end - window.begin;
    return window;
}

static struct window shared_rows(const struct pool *pool, size_t index)
{
    return share(index, pool->in_height, pool->out_height);
}

static struct window shared_columns(const struct pool *pool, size_t index)
{
    return share(index, pool->in_width, pool->out_width);
}
