#pragma once
#include "finish.h"

/* A fully connected layer. */
struct ternary_linear {
    size_t inputs, outputs;
    size_t block;                 /* inputs at a time */
    const uint16_t *outputs_read; /* which outputs there are, if not all; `outputs` of them */
    struct finish finish;
};
