#pragma once
#include "ternary_linear.h"

/*
 * Two bits per weight, for outputs in groups of 64. For each group and each input: eight numbers of 16 bits, of which
 * number j has the trits of outputs j, 8 + j, 16 + j, ... of the group from its lowest bits on. So one vector of eight
 * numbers, shifted by two bits at a time, says for eight vectors of outputs what the input does to them. Inputs that are
 * zero, as many are after a ReLU, are skipped.
 */
#define GROUP 64
#define CODED 8 /* trits in a number, and numbers of an input */
