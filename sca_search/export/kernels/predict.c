void model_predict_with(float *scratch, const float *in, float *out)
{
    @STATEMENTS@
}

#ifndef MODEL_NO_SCRATCH
void model_predict(const float *in, float *out)
{
    static float scratch[MODEL_SCRATCH];
    model_predict_with(scratch, in, out);
}
#endif
