#include "lanes.h"

/*
 * Maps that are read in place have a border of zeros: rows between them, and CELLS cells between the end of a row and
 * the begin of the next. The rows are cleared here, before the maps are written; the cells behind a row are cleared by
 * who writes it, while their cache line is at hand.
 */
struct bordered {
    size_t channels;
    size_t begin, step; /* floats in front of the first map, and from map to map */
    size_t behind;      /* floats of the border's rows behind a map */
};

/* A few cells behind the end may be cleared, too. */
static void clear_cells(float *to, const float *end)
{
    for (; to < end; to += MODEL_LANES) {
        store_lanes(to, all_lanes(0.0f));
    }
}

/* Before the maps are written: some of their last cells are cleared, too. */
static void clear_border(const struct bordered *value, float *maps)
{
    size_t channel;
    clear_cells(maps - value->begin, maps);
    for (channel = 1; channel <= value->channels; channel++) {
        float *const next = maps + channel * value->step;
        clear_cells(next - value->behind, next);
    }
}
