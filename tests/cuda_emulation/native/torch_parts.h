/*
 * torch_parts.h - what the files of the emulated libtorch_cuda share.
 */
#ifndef PTAC_TESTS_EMULATED_TORCH_PARTS_H
#define PTAC_TESTS_EMULATED_TORCH_PARTS_H

#include "device.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace emulated
{

/* Memory may be touched while it lives. */
struct opened {
    opened()
    {
        emulated_open();
    }
    ~opened()
    {
        emulated_close();
    }
    opened(const opened &) = delete;
};

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         at::ScalarType dtype, at::Device device);

/* A tensor of the CPU's in the memory of one on a device. */
at::Tensor on_cpu(const at::Tensor &tensor);

/* A copy on the device of a tensor of the CPU's. Memory is open. */
at::Tensor on_device(const at::Tensor &tensor, at::Device device);

/* Give a tensor memory for so many bytes, and what it had. Memory is open. */
void grow(const at::Tensor &tensor, size_t bytes);

/* Count a call of torch's own kernel. */
void note(const std::string &name);

/* What waits for the device breaks a capture: raise torch's error. */
void refuse_in_capture(const char *what);

} // namespace emulated

#endif
