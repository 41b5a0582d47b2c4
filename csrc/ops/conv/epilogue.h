/*
 * epilogue.h - what follows the sums of a convolution (see conv2d.h), for rows whose
 * sums a library leaves in memory.
 */
#ifndef PTAC_OPS_CONV_EPILOGUE_H
#define PTAC_OPS_CONV_EPILOGUE_H

#include "core/kernel.h"

/* Of an image [channels, places], in place; scale, shift and act are the call's. */
typedef void (*ptac_conv_epilogue)(const ptac_call *call, float *y);

#if defined(__x86_64__)
void ptac_conv_epilogue_avx2(const ptac_call *call, float *y);
void ptac_conv_epilogue_avx512(const ptac_call *call, float *y);
#endif

/* The one for this CPU; NULL where nothing follows. */
ptac_conv_epilogue ptac_conv_epilogue_of(const ptac_call *call);

#endif
