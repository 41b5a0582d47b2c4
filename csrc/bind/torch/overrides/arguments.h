/*
 * arguments.h - boxed arguments of the dispatcher, by the types of a schema.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_ARGUMENTS_H
#define PTAC_BIND_TORCH_OVERRIDES_ARGUMENTS_H

#include "bind/torch/overrides/override.h"

/* Fill in what comes of the schema; false where we cannot read a type. */
bool ptac_schema_read(ptac_override *override);

/* Take the arguments of a boxed call over. Views are not filled in. */
void ptac_arguments_take(const stable_ivalue *stack, ptac_arguments *args);
void ptac_arguments_view(ptac_arguments *args);
void ptac_arguments_drop(ptac_arguments *args);

/* The same for the arguments of a C++ call, which stay the caller's. */
void ptac_arguments_borrow(const ptac_typed_call *call, ptac_arguments *args);

/*
 * Stock's outputs by the overload that writes to given ones, and leads to the same
 * kernel through the dispatcher, a microsecond slower. Throws torch's error.
 */
void ptac_arguments_call_out(const ptac_arguments *args, at_tensor *out);

#endif
