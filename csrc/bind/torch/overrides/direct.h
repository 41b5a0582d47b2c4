/*
 * direct.h - operators of aten of which only C++ calls come to us.
 *
 * Some operators cannot be registered through torch's C ABI: it cannot pass a Scalar,
 * nor a list of optional tensors. In the dispatcher's entry of such an operator we
 * replace the word that C++ calls go by, the address of the CPU's kernel, and leave
 * torch's boxed kernel beside it: boxed calls go to stock. dispatch_slot.h says how the
 * word is found. Where it is not proved, or not torch's own, stock keeps the operator.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_DIRECT_H
#define PTAC_BIND_TORCH_OVERRIDES_DIRECT_H

#include "bind/abi/dispatch_slot.h"
#include "bind/torch/dispatch.h"

typedef struct ptac_direct {
    const char *name, *overload; /* "index", "Tensor" */
    ptac_op op;
    const void *symbol; /* where T keeps the address of torch's own kernel */
    const void *needs;  /* and of what else has to be there, or NULL */
    const void *typed;  /* (functor, keys, arguments ...), as C++ would call it */

    /* Of those in the dispatcher: where the address is, and torch's own. */
    at_typed_words words;
    uint64_t torchs;
    struct ptac_direct *next;
} ptac_direct;

/* At file scope, behind a description. */
#define PTAC_DIRECT(direct)                                                            \
    __attribute__((constructor)) static void announce_direct_##direct(void)            \
    {                                                                                  \
        ptac_direct_announce(&direct);                                                 \
    }

void ptac_direct_announce(ptac_direct *direct);

/* The first of all, the others follow it by next. */
const ptac_direct *ptac_direct_first(void);

/* Those of these operators into the dispatcher, or out of it in a quiet moment. */
void ptac_direct_install(const ptac_op_set *wanted);
void ptac_direct_remove(const ptac_op_set *unwanted);

/* Operators of which one is in the dispatcher. */
ptac_op_set ptac_direct_installed(void);

/* scalars.c: a real number; false of others, and where torch's do not read so. */
bool ptac_scalar_read(const at_scalar *scalar, double *value);

/*
 * ptac_run() of a call that writes to a tensor of the program's: outputs[0] is self's.
 * Where a shadow check is due, stock works on a copy, which self becomes where they
 * differ. False: run stock, self is as it was.
 */
typedef void (*ptac_stock_in_place)(at_tensor self, const void *context);
bool ptac_run_in_place(const ptac_kernel *row, const ptac_call *call, at_tensor self,
                       ptac_stock_in_place stock, const void *context);

#endif
