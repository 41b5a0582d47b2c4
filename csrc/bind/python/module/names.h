/*
 * names.h - attributes and keys of Python's objects that are read in C, as interned
 * strings: they are looked up in every call.
 */
#ifndef PTAC_BIND_PYTHON_MODULE_NAMES_H
#define PTAC_BIND_PYTHON_MODULE_NAMES_H

#include "bind/python/module/pybind.h"

/* Of modules, of tensors, of optimizers. */
#define PTAC_NAMES(X)                                                                  \
    X(_parameters), X(_buffers), X(_modules), X(weight), X(bias), X(running_mean),     \
        X(running_var), X(training), X(track_running_stats), X(eps), X(stride),        \
        X(padding), X(dilation), X(groups), X(padding_mode), X(kernel_size),           \
        X(return_indices), X(ceil_mode), X(approximate), X(weight_packed),             \
        X(weight_scale), X(_int8), X(weight_fp8), X(floats), X(is_float), X(shape),    \
        X(_geometry), X(__getattr__), X(__getattribute__), X(_forward_hooks),          \
        X(_forward_pre_hooks), X(_backward_hooks), X(_backward_pre_hooks), X(forward), \
        X(_compiled_call_impl), X(_call_impl), X(_version), X(is_leaf),                \
        X(requires_grad), X(_base), X(detach), X(grad_fn), X(output_nr), X(is_sparse), \
        X(is_cpu), X(_current_level), X(param_groups), X(params), X(state), X(grad),   \
        X(lr), X(momentum), X(dampening), X(weight_decay), X(nesterov), X(maximize),   \
        X(foreach), X(fused), X(capturable), X(differentiable), X(betas), X(amsgrad),  \
        X(decoupled_weight_decay), X(momentum_buffer), X(step), X(exp_avg),            \
        X(exp_avg_sq), X(max_exp_avg_sq), X(p), X(inplace), X(min_val), X(max_val),    \
        X(num_batches_tracked), X(add_), X(rho), X(square_avg), X(acc_delta),          \
        X(alpha), X(centered), X(grad_avg), X(sum), X(lr_decay), X(mu_product),        \
        X(momentum_decay), X(padding_idx), X(max_norm), X(scale_grad_by_freq),         \
        X(sparse), X(mode), X(include_last_offset), X(__code__), X(__name__),          \
        X(__basicsize__), X(__dict__), X(_dispatch_cache), X(cached_ops), X(f_back),   \
        X(f_code), X(cell_contents), X(copy_), X(_post_accumulate_grad_hooks)

/* Filled when the module is made. */
extern struct ptac_names {
#define X(name) *name
    PyObject PTAC_NAMES(X);
#undef X
} ptac_names;

/* Whether all are there; an exception is set where not. */
bool ptac_names_intern(void);

#endif
