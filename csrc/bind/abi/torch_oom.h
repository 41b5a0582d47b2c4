/*
 * torch_oom.h - torch's own out-of-memory error, thrown from C.
 */
#ifndef PTAC_BIND_ABI_TORCH_OOM_H
#define PTAC_BIND_ABI_TORCH_OOM_H

#include <stdbool.h>

/*
 * Throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError; where this
 * torch's cannot be made, c10::Error (RuntimeError). The frames up to torch's must let
 * C++ exceptions pass. Does not return.
 */
void ptac_torch_throw_oom(const char *text) __attribute__((noreturn));
/* The same with c10::Error. */
void ptac_torch_throw(const char *text) __attribute__((noreturn));

/* Whether this torch's type of error was found. */
bool ptac_torch_has_oom(void);

#endif
