/*
 * scalars.c - whether torch's Scalars read as we think.
 */
#include "bind/torch/overrides/direct.h"

#include <string.h>

/* A number of torch's, as it comes out of a tensor. */
static bool reads_as(int32_t dtype, double real, int64_t number, int32_t tag)
{
    AT_OWNED at_tensor tensor = NULL;
    at_scalar scalar;

    if (at_new(dtype, 0, NULL, &tensor))
        return false;
    memcpy(at_data(tensor), tag == AT_SCALAR_REAL ? (void *)&real : (void *)&number,
           sizeof number);
    scalar = T.cpu_scalar(tensor);
    return scalar.tag == tag &&
           (tag == AT_SCALAR_REAL ? scalar.real == real : scalar.number == number);
}

static bool can_read(void)
{
    enum { UNKNOWN, YES, NO };
    static int known;
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);

    if (now == UNKNOWN) {
        now = T.cpu_scalar && reads_as(AT_DTYPE_F64, 1, 0, AT_SCALAR_REAL) &&
                      reads_as(AT_DTYPE_F64, 2.5, 0, AT_SCALAR_REAL) &&
                      reads_as(AT_DTYPE_I64, 0, 1, AT_SCALAR_INT) &&
                      reads_as(AT_DTYPE_I64, 0, -3, AT_SCALAR_INT)
                  ? YES
                  : NO;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now == YES;
}

bool ptac_scalar_read(const at_scalar *scalar, double *value)
{
    if (!can_read() || (scalar->tag != AT_SCALAR_REAL && scalar->tag != AT_SCALAR_INT))
        return false;
    *value = scalar->tag == AT_SCALAR_INT ? (double)scalar->number : scalar->real;
    return true;
}
