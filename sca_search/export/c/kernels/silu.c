#include <math.h>
#include <stddef.h>

static void silu(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = in[i] / (1.0f + expf(-in[i]));
    }
}
