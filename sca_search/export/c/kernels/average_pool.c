#include "sliding_window.h"
#include "mean_of.h"

static void average_pool(const struct pool *pool, const float *in, float *out)
{
    pool_maps(pool, in, out, sliding_rows, sliding_columns, mean_of);
}
