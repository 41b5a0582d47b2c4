/*
 * bridge.h - torch's arguments as the core sees them.
 */
#ifndef PTAC_BIND_TORCH_BRIDGE_H
#define PTAC_BIND_TORCH_BRIDGE_H

#include "bind/abi/handle.h"
#include "core/chooser.h"
#include "core/counters.h"
#include "core/host.h"
#include "core/kernel.h"

/*
 * The tensor's memory as a view; valid while the tensor lives. Where torch cannot tell
 * the memory, or has given it away, the dtype is PTAC_OTHER_DTYPE, which no row takes.
 */
void ptac_view_of(at_tensor tensor, ptac_view *view);

/* Likewise of a tensor that may lie on a CUDA device: which, and float16 is known. */
void ptac_cuda_view_of(at_tensor tensor, ptac_view *view);

/* The one or the other. */
static inline void ptac_view_on(ptac_device device, at_tensor tensor, ptac_view *view)
{
    (device == PTAC_ON_CUDA ? ptac_cuda_view_of : ptac_view_of)(tensor, view);
}

/*
 * Have call->device be the one that the inputs, but for those without data, lie on; or
 * say that there is no such device. On the CPU there is nothing to do.
 */
ptac_reason ptac_call_place(ptac_call *call);

/* Torch's number of a dtype that rows may name; and which one a number is. */
int32_t ptac_torch_dtype(ptac_dtype dtype);
ptac_dtype ptac_dtype_of(int32_t torch_dtype);

/* Why a view is not of floats with so many dimensions, none of them empty. */
ptac_reason ptac_floats_reason(const ptac_view *view, int n_dims);

/* Why it is not n floats, one behind the other. */
ptac_reason ptac_vector_reason(const ptac_view *view, int64_t n);

/*
 * An int[] of n elements, of which four are kept: torch convolves in three dimensions
 * at most. Behind a single one stands the same once more.
 */
typedef struct ptac_dims {
    int64_t values[4];
    int n;
} ptac_dims;

/* Two elements, or one that stands for both. */
static inline bool ptac_dims_is_pair(const ptac_dims *given)
{
    return given->n == 1 || given->n == 2;
}

/* The tensor behind a handle, which is taken over, in that memory format. */
at_error at_contiguous(at_tensor given, bool channels_last, at_tensor *made);

/* The tensor itself, or a dense copy in that memory format (a new handle each time). */
at_tensor at_dense(at_tensor tensor, const ptac_view *view, bool channels_last);

enum {
    PTAC_MAX_DIMS = 16,
};

/* One of torch's devices. */
typedef struct at_device {
    int32_t type;   /* AT_DEVICE_*, which ptac_device equals */
    int32_t number; /* 0 of the CPU */
} at_device;

/*
 * A new tensor on the CPU, contiguous where strides is NULL, of at most PTAC_MAX_DIMS
 * dimensions; and its view, unless that is NULL.
 */
at_error ptac_new(ptac_dtype dtype, int n_dims, const int64_t *sizes,
                  const int64_t *strides, at_tensor *made, ptac_view *view);

/* Likewise, contiguous, of a dtype of torch's. */
at_error at_new(int32_t dtype, int n_dims, const int64_t *sizes, at_tensor *made);

/* Both on any device, whose memory torch's own allocator gives. */
at_error ptac_new_on(at_device device, ptac_dtype dtype, int n_dims,
                     const int64_t *sizes, const int64_t *strides, at_tensor *made,
                     ptac_view *view);
at_error at_new_on(at_device device, int32_t dtype, int n_dims, const int64_t *sizes,
                   const int64_t *strides, at_tensor *made);

/* Likewise a dense batch of images in that memory format. */
at_error ptac_new_images(ptac_dtype dtype, const int64_t sizes[4], bool channels_last,
                         at_tensor *made, ptac_view *view);

/* Likewise a contiguous matrix of floats. */
at_error ptac_new_matrix(int64_t m, int64_t n, at_tensor *made, ptac_view *view);

/* Where a tensor's elements lie; NULL of no tensor. */
void *at_data(at_tensor tensor);

/* The tensor, or none, as C++ takes an optional one. */
static inline at_optional_tensor ptac_optional(at_tensor tensor)
{
    return (at_optional_tensor){tensor ? *(void **)tensor : NULL, tensor != NULL};
}

/* Whether its dimensions have names, which stock's kernels see to. */
static inline bool ptac_has_names(at_tensor tensor)
{
    return T.has_names && T.has_names(*(void **)tensor);
}

/* The same tensor under another handle. */
at_tensor at_share(at_tensor tensor);

/* Strides of a dense batch of images, CHW or NCHW, or of volumes, NCDHW. */
void ptac_image_strides(int n_dims, const int64_t *sizes, bool channels_last,
                        int64_t *strides);

/*
 * Of the offsets from first to last, in bytes, the only one at which each of n objects
 * has its word; 0 where none is, or several are.
 */
int64_t ptac_only_offset(void *const *objects, const uint64_t *words, int n,
                         int64_t first, int64_t last);

/* The user has switched oneDNN off: stock then computes and lays out otherwise. */
static inline bool ptac_onednn_is_off(void)
{
    return T.global_context && T.onednn_is_allowed &&
           !T.onednn_is_allowed(T.global_context());
}

/* Lend torch's threads to the core. */
void ptac_host_install(void);

/*
 * Learn how this torch rounds, see core/host.h: from samples x and torch.sqrt(x), and
 * from float samples a, b and torch.add(a, b, alpha=alpha), all contiguous. False when
 * nothing we know reproduces the samples: rows that depend on it must not run.
 */
bool ptac_learn_sqrt(const ptac_view *x, const ptac_view *roots);
bool ptac_learn_fma(const ptac_view *a, const ptac_view *b, float alpha,
                    const ptac_view *sum);

#endif
