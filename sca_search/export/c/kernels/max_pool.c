#include "sliding_window.h"
#include "largest_in.h"

static void max_pool(const struct pool *pool, const float *in, float *out)
{
    pool_maps(pool, in, out, sliding_rows, sliding_columns, largest_in);
}
