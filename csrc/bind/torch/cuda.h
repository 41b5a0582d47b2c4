/*
 * cuda.h - what a call on a CUDA device needs besides its row: stream and context.
 *
 * Torch's calls follow its current stream of their device. A launch also needs the
 * device's context to be the thread's, which threads that torch has started, and those
 * that have made another device current, do not have. So each call of ours is
 *
 *     PTAC_CUDA_SCOPE scope = {false};
 *     if (!ptac_cuda_begin(&call, &scope)) ...      run stock
 *     ... make outputs, ptac_run() ...
 *
 * and whatever was current comes back with the end of the scope, also while a C++
 * exception passes through.
 */
#ifndef PTAC_BIND_TORCH_CUDA_H
#define PTAC_BIND_TORCH_CUDA_H

#include "bind/torch/bridge.h"
#include "device/cuda/context.h"

/* Why no call on CUDA can be served by this program, or NULL. Starts no driver. */
const char *ptac_cuda_reason(void);

/*
 * The call's device is set: have its context be current, and fill in its stream. False
 * where the driver, which runs when there are such calls, does not let us. A call on
 * the CPU needs nothing of this.
 */
bool ptac_cuda_begin(ptac_call *call, ptac_cuda_scope *scope);

/* Whether launches on the call's stream are being recorded, and copies forbidden. */
bool ptac_cuda_is_capturing(const ptac_call *call);

/* Of a tensor on that device: its number among those. */
int32_t ptac_cuda_device_of(ptac_device on, at_tensor tensor);

/*
 * The name of a device, "" where the driver, which runs from here on, does not tell it;
 * and whether it is that one.
 */
void ptac_cuda_name(int device, char name[PTAC_DEVICE_NAME_BYTES]);
bool ptac_cuda_is_called(int device, const char *name);

/*
 * A copy on the CPU, dense or not as the tensor is. Torch waits for the device: for
 * checks alone. NULL where torch gives none.
 */
at_tensor ptac_cuda_copy(at_tensor tensor);

#endif
