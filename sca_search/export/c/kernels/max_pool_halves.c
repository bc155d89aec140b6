#include "pool.h"

static float larger_float(float left, float right)
{
    return left > right ? left : right;
}

/* The most common pool, 2 x 2 windows side by side, in loops that compilers turn into vectors. */
static void max_pool_halves(const struct pool *pool, const float *in, float *out)
{
    size_t channel, row, column;
    for (channel = 0; channel < pool->channels; channel++) {
        for (row = 0; row < pool->out_height; row++) {
            const float *restrict upper = in + channel * pool->in_step + 2 * row * pool->in_row;
            const float *restrict lower = upper + pool->in_row;
            float *restrict to = out + channel * pool->out_step + row * pool->out_row;
            if (pool->bordered) {
                clear_behind(to + pool->out_width);
            }
            for (column = 0; column < pool->out_width; column++) {
                const float left = larger_float(upper[2 * column], lower[2 * column]);
                const float right = larger_float(upper[2 * column + 1], lower[2 * column + 1]);
                to[column] = larger_float(left, right);
            }
        }
    }
}
