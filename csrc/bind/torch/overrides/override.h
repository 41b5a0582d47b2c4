/*
 * override.h - aten operators whose kernel we replace while a switch is on.
 *
 * An operator is described by one ptac_override, which PTAC_OVERRIDE announces; these
 * announcements are the whitelist. override.c reads the arguments, finds a row, makes
 * the outputs, and calls stock where no row serves the call.
 *
 * An override sits at a device's key, below autograd, autocast and functorch, which
 * therefore stay torch's own. On CUDA it is served by rows that only launch, on the
 * current stream; nothing here waits for the device or reads its memory.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_OVERRIDE_H
#define PTAC_BIND_TORCH_OVERRIDES_OVERRIDE_H

#include "bind/torch/dispatch.h"
#include "bind/torch/overrides/direct.h"

#include <string.h>

enum {
    PTAC_MAX_ARGUMENTS = 20,
    PTAC_NO_ARGUMENT = -1,
    PTAC_PARAMS_BYTES = 256,
    PTAC_MAX_OTHER_OPS = 3,
    PTAC_TYPED_REGISTERS = 3, /* of a C++ call's six, behind result, functor and keys */
    PTAC_TYPED_REALS = 2,
};

/* One argument; its type in the schema says which fields hold it. */
typedef struct ptac_argument {
    at_tensor tensor; /* Tensor, Tensor?: NULL where there is none */
    union {
        ptac_view view; /* of the tensor */
        struct {
            ptac_dims ints;     /* int[], bool[] */
            const int64_t *all; /* of int[]: all of them */
        };
        struct {
            at_text text;      /* str */
            at_text_box boxed; /* who owns it, in a boxed call */
        };
        int64_t number; /* int, int?, ScalarType, ScalarType? */
        bool truth;     /* bool */
        double real;    /* float, float? */
        struct {
            double value;            /* Scalar, if that is a real number; */
            const at_scalar *scalar; /* the whole of it; NULL where value is that */
        };
    };
    bool is_given; /* false: None, or a Scalar that is complex or symbolic */
} ptac_argument;

struct ptac_override;

/* The arguments of a call, in the schema's order. */
typedef struct ptac_arguments {
    const struct ptac_override *of;
    ptac_device on; /* by whose key it came */
    ptac_argument at[PTAC_MAX_ARGUMENTS];
} ptac_arguments;

/* A tensor that a row writes, contiguous or channels_last as the call is. */
typedef struct ptac_output {
    int32_t dtype; /* torch's */
    int n_dims;    /* at most PTAC_MAX_DIMS; < 0: an undefined tensor, or none */
    const int64_t *sizes;
    int place;              /* among the row's outputs, of which there are as many */
    const int64_t *strides; /* NULL: as the call is laid out */
} ptac_output;

/*
 * What the outputs of a call look like, and which inputs it needs. Before read() all
 * are as the first input, with own_sizes, and the second of int64. Behind those of the
 * schema may be others, which a row works in, or which torch does not want.
 */
typedef struct ptac_outputs {
    int n;
    ptac_output at[PTAC_MAX_OUTPUTS];
    bool bf16_makes;    /* rows that round to it make them, and put them here: */
    at_tensor *made;    /* as many as the schema has */
    bool channels_last; /* else contiguous; inputs are made dense likewise: */
    uint32_t dense;     /* a bit for each, all unless read() says otherwise */
    int64_t own_sizes[PTAC_MAX_DIMS]; /* room for sizes that no tensor has */
    int64_t own_strides[3][4];        /* and for strides */
} ptac_outputs;

/* All of them have these sizes, which live on. */
static inline void ptac_outputs_are(ptac_outputs *outputs, int n_dims,
                                    const int64_t *sizes)
{
    for (int i = 0; i < outputs->n; i++) {
        outputs->at[i].n_dims = n_dims;
        outputs->at[i].sizes = sizes;
    }
}

/* How calls on a device come in, and torch's own kernel there. */
typedef struct ptac_override_side {
    at_result (*kernel)(const ptac_arguments *args);
    const void *symbol; /* where T keeps the kernel's address */
    at_boxed_fn boxed;  /* NULL: no override on this device */
    const void *typed;  /* NULL: this machine's C++ calls are not known to us */
} ptac_override_side;

typedef struct ptac_override {
    /* As torch prints it. Where it has a Scalar, only C++ calls come: see direct.h. */
    const char *schema;
    ptac_op op;

    /*
     * Where some calls are of other operators of ours: which these are, and which one a
     * call is of, by its arguments and their views. read() finds it in call->op.
     */
    int n_others;
    ptac_op others[PTAC_MAX_OTHER_OPS];
    ptac_op (*op_of)(const ptac_arguments *args);

    /*
     * Where a torch lacks the kernel that a macro below names, this overload is called
     * instead, "aten::name.overload", with outputs of the ScalarType among the
     * arguments or else of self's. Without either there is no override.
     */
    const char *out;

    /* Outputs have the sizes of this argument; options follow it. 0: forward. */
    int self;

    /*
     * The arguments that rows take as inputs. Those that are absent have no data, and
     * at the end they are not counted.
     */
    int n_inputs;
    int inputs[AT_MAX_TENSORS]; /* PTAC_NO_ARGUMENT is always absent */

    /*
     * Fill params, the operator's own struct, and *outputs, or say why stock has to do
     * this call. Arguments' views and call->inputs are there.
     */
    ptac_reason (*read)(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs);

    /* read() or the rows look at tensors by their handles: not at views alone. */
    bool by_handles;
    /* The address of a member of T, besides torch's kernel, that has to be there. */
    const void *needs;
    /* A call in bfloat16 leaves a mark for its gradient, see rows/bf16_grad.c. */
    bool marks;

    /* Hooks, NULL in most descriptions. */
    const ptac_kernel *(*admit)(ptac_call *call); /* instead of ptac_admit() */
    /* Asked first, before anything is read: less work than any that is ever served. */
    bool (*is_small)(const ptac_arguments *args);
    /* Instead of read: all outputs, or false for stock, with the reason counted. */
    bool (*serve)(const ptac_arguments *args, at_tensor *out);

    /* Filled in by ptac_override_announce(). */
    ptac_override_side on[PTAC_N_DEVICES];
    char name[56];
    char types[PTAC_MAX_ARGUMENTS];
    int n_arguments, n_outputs;
    bool can_be_typed;  /* all arguments can be read off a C++ call */
    bool is_only_typed; /* one of them is a Scalar, which does not come otherwise: */
    ptac_direct direct; /* on the CPU, and not among the announced */
} ptac_override;

/* The arguments of a C++ call where System V's rules for x86-64 have put them. */
typedef struct ptac_typed_call {
    uint64_t registers[PTAC_TYPED_REGISTERS];
    double reals[PTAC_TYPED_REALS];
    const uint64_t *stack;
} ptac_typed_call;

/* As a last parameter: by the same rules it lies where the stack's arguments begin. */
typedef struct ptac_typed_stack {
    uint64_t words[4 * PTAC_MAX_ARGUMENTS];
} ptac_typed_stack;

#ifdef __x86_64__
/* A C++ function's address of its result comes first, and is what it returns. */
#define PTAC_TYPED(override, place)                                                    \
    static void *typed_##place##_##override(                                           \
        void **result, void *functor, uint64_t keys, uint64_t a, uint64_t b,           \
        uint64_t c, double x, double y, ptac_typed_stack stack)                        \
    {                                                                                  \
        const ptac_typed_call call = {{a, b, c}, {x, y}, stack.words};                 \
                                                                                       \
        (void)functor;                                                                 \
        (void)keys;                                                                    \
        ptac_override_call_typed(&override, PTAC_ON_##place, &call, result);           \
        return result;                                                                 \
    }
#define PTAC_TYPED_ADDRESS(override, place)                                            \
    ((const void *)(uintptr_t)typed_##place##_##override)
#else
#define PTAC_TYPED(override, place)
#define PTAC_TYPED_ADDRESS(override, place) NULL
#endif

/*
 * At file scope, behind a description: torch's own kernel, called by a function of ours
 * where its name in PTAC_TORCH_MANGLED and arguments do not say all.
 */
#define PTAC_OVERRIDE_BY(override, function, torchs)                                   \
    PTAC_OVERRIDE_AT(CPU, override, function, torchs)
#define PTAC_OVERRIDE_AT(place, override, function, torchs)                            \
    PTAC_TYPED(override, place)                                                        \
    static void boxed_##place##_##override(stable_ivalue *stack, uint64_t n_args,      \
                                           uint64_t n)                                 \
    {                                                                                  \
        (void)n_args;                                                                  \
        (void)n;                                                                       \
        ptac_override_call(&override, PTAC_ON_##place, stack);                         \
    }                                                                                  \
    __attribute__((constructor)) static void announce_##place##_##override(void)       \
    {                                                                                  \
        override.on[PTAC_ON_##place] = (ptac_override_side){                           \
            .kernel = function,                                                        \
            .symbol = &T.torchs,                                                       \
            .boxed = boxed_##place##_##override,                                       \
            .typed = PTAC_TYPED_ADDRESS(override, place),                              \
        };                                                                             \
        ptac_override_announce(&override);                                             \
    }

/*
 * Else by its arguments, which the macros below name, in the schema's order. Where the
 * operator has rows of CUDA, a second line is PTAC_OVERRIDE_ON_CUDA, or that alone.
 */
#define PTAC_OVERRIDE(override, torchs, ...)                                           \
    PTAC_OVERRIDE_ON(CPU, override, torchs, __VA_ARGS__)
#define PTAC_OVERRIDE_ON_CUDA(override, torchs, ...)                                   \
    PTAC_OVERRIDE_ON(CUDA, override, torchs, __VA_ARGS__)
#define PTAC_OVERRIDE_ON(place, override, torchs, ...)                                 \
    static at_result kernel_##place##_##override(const ptac_arguments *args)           \
    {                                                                                  \
        return T.torchs(__VA_ARGS__);                                                  \
    }                                                                                  \
    PTAC_OVERRIDE_AT(place, override, kernel_##place##_##override, torchs)

/* Arguments as C++ takes them. */
#define TENSOR(i)          args->at[i].tensor
#define OPTIONAL_TENSOR(i) (&(at_optional_tensor[]){ptac_optional(TENSOR(i))}[0])
#define INTS(i)            ptac_ints(&args->at[i])
#define OPTIONAL_INTS(i)   ((at_optional_ints){INTS(i), args->at[i].is_given})
#define BOOLS(i)           args->at[i].ints.values
#define MASK(i)            ((at_mask3){{BOOLS(i)[0], BOOLS(i)[1], BOOLS(i)[2]}})
#define MASK2(i)           ((at_mask2){{BOOLS(i)[0], BOOLS(i)[1]}})
#define INT(i)             args->at[i].number
#define OPTIONAL_INT(i)    ((at_optional_int){INT(i), args->at[i].is_given})
#define BOOL(i)            args->at[i].truth
#define REAL(i)            args->at[i].real
#define OPTIONAL_REAL(i)   ((at_optional_real){REAL(i), args->at[i].is_given})
#define DTYPE(i)           ((int8_t)INT(i))
#define OPTIONAL_DTYPE(i)  ((at_optional_dtype){DTYPE(i), args->at[i].is_given})
#define SCALAR(i)          args->at[i].scalar
#define TEXT(i)            args->at[i].text

/* Once for each side that it has. */
void ptac_override_announce(ptac_override *override);

/* A call with boxed arguments; and one of a C++ function, which fills in result. */
void ptac_override_call(const ptac_override *override, ptac_device on,
                        stable_ivalue *stack);
void ptac_override_call_typed(const ptac_override *override, ptac_device on,
                              const ptac_typed_call *call, void **result);

/*
 * The steps of a call: the inputs that the description names; n outputs as they are
 * where read() says no more; and one of these made, as read() says.
 */
void ptac_override_inputs(const ptac_arguments *args, ptac_call *call);
void ptac_override_expect(const ptac_call *call, int n, ptac_outputs *outputs);
at_error ptac_override_output(const ptac_outputs *outputs, int i, ptac_call *call,
                              at_tensor *made);

/* Stock's outputs for these arguments, a ptac_stock_fn. */
void ptac_override_stock(const void *args, at_tensor *out);

/* As many elements as there were: torch complains about wrong numbers itself. */
static inline at_ints ptac_ints(const ptac_argument *argument)
{
    return (at_ints){argument->all, (size_t)argument->ints.n};
}

/* The arguments behind self. */
static inline const ptac_argument *ptac_options(const ptac_arguments *args)
{
    return args->at + args->of->self + 1;
}

/* Whether this torch has a function, by where T keeps its address. */
static inline bool ptac_torch_has(const void *member)
{
    void *address;

    memcpy(&address, member, sizeof address);
    return address;
}

/* The side with torch's kernel for the call; NULL where this torch offers none. */
static inline const ptac_override_side *ptac_torchs_own(const ptac_arguments *args)
{
    const ptac_override_side *side = &args->of->on[args->on];

    return ptac_torch_has(side->symbol) ? side : NULL;
}

/* The i-th announced override, or NULL beyond the last: those that are registered. */
const ptac_override *ptac_override_at(int i);

/* The one of that name, "add.Tensor", also of those that only C++ calls come to. */
const ptac_override *ptac_override_named(const char *name);

/* An override's operators. */
ptac_op_set ptac_override_ops(const ptac_override *override);

/*
 * Operators for which overrides lie at the keys of each device. An override of several
 * lies there as long as one of them is wanted.
 */
typedef struct ptac_places {
    ptac_op_set on[PTAC_N_DEVICES];
} ptac_places;

/*
 * Put these overrides into the dispatcher, in addition to those already there, leaving
 * out those that are not possible. NULL, or what went wrong; then none was added.
 */
const char *ptac_override_install(ptac_places wanted);

/* Those that are in the dispatcher now, or only those that are called unboxed. */
ptac_places ptac_override_installed(bool only_typed);

/*
 * Whether no call of ours is in flight, nor any other thread about to make one as long
 * as the caller keeps the interpreter's lock.
 */
bool ptac_is_quiet(void);

/* Take these overrides out of the dispatcher, in such a moment. */
void ptac_override_remove(ptac_places unwanted);

/* arguments.c: boxed arguments of the dispatcher, by the types of a schema. */

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
