#include "shared_window.h"
#include "mean_integer.h"

static void integer_adaptive_average_pool(const struct pool *pool, const int8_t *in, int8_t *out, int64_t factor)
{
    pool_integers(pool, in, out, shared_rows, shared_columns, mean_integer, factor);
}
