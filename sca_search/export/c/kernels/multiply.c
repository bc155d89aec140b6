#include <stddef.h>

static void multiply(const float *left, const float *right, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = left[i] * right[i];
    }
}
