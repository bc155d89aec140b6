#include "shared_window.h"
#include "largest_integer.h"

static void integer_adaptive_max_pool(const struct pool *pool, const int8_t *in, int8_t *out, int64_t factor)
{
    pool_integers(pool, in, out, shared_rows, shared_columns, largest_integer, factor);
}
