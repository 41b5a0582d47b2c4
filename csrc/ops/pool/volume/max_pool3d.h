/*
 * max_pool3d.h - 3-d max pooling with indices, forward and backward. Level exact.
 *
 * As max_pool2d.h has it, with indices into the d*h*w positions of each plane: ties go
 * to the first tap in the order of positions, and NaN to the last. Of a window that is
 * -inf all through the index is the first tap's. Stock's is too, but with channels last
 * for those behind the last whole vector, whose index lies in the first slab.
 */
#ifndef PTAC_OPS_POOL_VOLUME_MAX_POOL3D_H
#define PTAC_OPS_POOL_VOLUME_MAX_POOL3D_H

#include "ops/pool/max/max_pool2d.h"
#include "ops/pool/volume/window3d.h"

typedef struct ptac_max_pool3d {
    ptac_max_pool2d slab;
    ptac_depth depth;
} ptac_max_pool3d;

/* Shape kinds, for calibration. */
enum {
    PTAC_MAX_POOL3D_STRIDED,       /* NCDHW, stride 1 or 2 along the rows */
    PTAC_MAX_POOL3D_FAR,           /* NCDHW, larger strides */
    PTAC_MAX_POOL3D_CHANNELS_LAST, /* NDHWC */
};

/* Backward kinds. */
enum {
    PTAC_MAX_POOL3D_BACKWARD_ANY,
    PTAC_MAX_POOL3D_BACKWARD_CHANNELS_LAST,
};

/* The definition: what vector rows do not do better themselves they leave to it. */
ptac_status ptac_max_pool3d_by_definition(const ptac_call *call);

#endif
