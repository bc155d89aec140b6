/* One variant of the network under names that no other has; with TIMED_STEPS, one that tells when each step is done. */
#include "calibrate.h"

#ifdef TIMED_STEPS
#define VARIANT(what) timed_@NUMBER@_##what
#define MODEL_STEP_DONE(place) calibrate_step(place)
#else
#define VARIANT(what) plain_@NUMBER@_##what
#endif

#define MODEL_NO_SCRATCH
#define model_class_names VARIANT(class_names)
#define model_init VARIANT(init)
#define model_predict_with VARIANT(predict)

@MODEL@
const struct variant VARIANT(variant) = {MODEL_TABLES, MODEL_SCRATCH, model_init, model_predict_with};
