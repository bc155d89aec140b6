#include "lanes.h"

/*
 * Maps that are read in place have a border of zeros: rows between them, and CELLS cells between the end of a row and
 * the begin of the next. The rows are cleared here, before the maps are written, with some cells of the row above,
 * which must not be written; the cells after a row are cleared by its writer, while their cache line is loaded.
 */
struct bordered {
    size_t channels;
    size_t begin, step; /* floats of the border before a map, and from map to map */
};

/* A few cells after the end may be cleared as well. */
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
    for (channel = 0; channel <= value->channels; channel++) {
        float *const next = maps + channel * value->step;
        clear_cells(next - value->begin, next);
    }
}
