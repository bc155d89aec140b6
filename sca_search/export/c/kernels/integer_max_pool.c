#include "sliding_window.h"
#include "largest_integer.h"

static void integer_max_pool(const struct pool *pool, const int8_t *in, int8_t *out, int64_t factor)
{
    pool_integers(pool, in, out, sliding_rows, sliding_columns, largest_integer, factor);
}
