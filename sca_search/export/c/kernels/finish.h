#pragma once
#include <float.h>
#include "lanes.h"

/* The last operations on a layer's sum: scale and bias of its channel, a residual, the limits of the activation. */
struct finish {
    const float (*affine)[2]; /* scale and bias of each output */
    float lowest, highest;
};

/* Loaded once for many cells: a compiler cannot know that writing cells does not change them. */
struct lane_limits {
    lanes lowest, highest;
};

INLINE struct lane_limits limits_of(const struct finish *finish)
{
    struct lane_limits limits;
    limits.lowest = all_lanes(finish->lowest);
    limits.highest = all_lanes(finish->highest);
    return limits;
}

INLINE lanes limited_lanes(struct lane_limits limits, lanes value)
{
    return smaller_lanes(limits.highest, larger_lanes(limits.lowest, value));
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
