#pragma once
#include <float.h>
#include "lanes.h"

/* What happens to a sum before it leaves a layer: scale and bias of its channel, a residual, the activation's limits. */
struct finish {
    const float (*affine)[2]; /* scale and bias of each output */
    float lowest, highest;
};

INLINE lanes limited_lanes(const struct finish *finish, lanes value)
{
    return smaller_lanes(all_lanes(finish->highest), larger_lanes(all_lanes(finish->lowest), value));
}

INLINE float limited(const struct finish *finish, float value)
{
    value = value < finish->lowest ? finish->lowest : value;
    return value > finish->highest ? finish->highest : value;
}

INLINE float finished(const struct finish *finish, size_t output, float sum)
{
    return limited(finish, sum * finish->affine[output][0] + finish->affine[output][1]);
}
