#include <stddef.h>

static void relu6(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = in[i] > 6.0f ? 6.0f : in[i] > 0.0f ? in[i] : 0.0f;
    }
}
