/*
 * step_cuda_main.c - steps by the rows of CUDA in the emulation, as stdin asks for.
 *
 * Input: a request, the sizes of the parameters, what these hold, and gradients for
 * each step. Output: a reply, then parameters, states and counts of steps. All arrays
 * are the program's own and end where their last element does.
 */
#include "device/cuda/launch.h"
#include "emulator.h"
#include "ops/optim/step.h"
#include "ops/optim/zero_grad.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REFUSED = 1, /* by the driver: an invalid value */
    NO_IMAGE = 200,
};

/* In the order of test_step_cuda.py's. */
typedef struct request {
    int32_t op, dtype, n_items, n_steps; /* op: ptac_op */
    int32_t has_large;                   /* the unit of large tables has machine code */
    int32_t fail_at;      /* the launch of this number is refused; 0: none */
    int32_t order, shift; /* of threads; bytes by which arrays are not aligned */
    int32_t n_states, nesterov, maximize, is_capturable;
    int32_t step_dtype, lr_dtype; /* lr_dtype: of a rate on the device, or -1 */
    double lr, momentum, dampening, weight_decay, beta1, beta2, eps;
} request;

typedef struct reply {
    int32_t refused, status; /* of the last step */
    int64_t n_launches, bytes_read, bytes_written;
} reply;

static request asked;
static int n_launches;
static char a_stream;

static cu_result load(cu_library *library, const void *code, cu_jit_option *options,
                      void **values, unsigned int n_options,
                      cu_library_option *library_options, void **library_values,
                      unsigned int n_library_options)
{
    (void)options, (void)values, (void)library_options, (void)library_values;
    *library = (cu_library)(uintptr_t)code;
    if (n_options || n_library_options)
        return REFUSED;
    return strcmp(code, "emulated") == 0 ? PTAC_CU_OK : NO_IMAGE;
}

static cu_result find(cu_kernel *kernel, cu_library library, const char *name)
{
    (void)library;
    *kernel = (cu_kernel)(uintptr_t)emulator_find(name);
    return *kernel ? PTAC_CU_OK : REFUSED;
}

static cu_result launch(cu_function kernel, unsigned int blocks_x,
                        unsigned int blocks_y, unsigned int blocks_z,
                        unsigned int threads_x, unsigned int threads_y,
                        unsigned int threads_z, unsigned int shared_bytes,
                        cu_stream stream, void **parameters, void **extra)
{
    const emulated_grid grid = {{blocks_x, blocks_y, blocks_z},
                                {threads_x, threads_y, threads_z}};

    if (++n_launches == asked.fail_at || shared_bytes || extra ||
        stream != (cu_stream)(void *)&a_stream)
        return REFUSED;
    return emulator_launch(kernel, &grid, parameters) ? PTAC_CU_OK : REFUSED;
}

static void begin(void)
{
    ptac_cuda.library_load = load;
    ptac_cuda.library_kernel = find;
    ptac_cuda.launch = launch;
    for (ptac_cuda_unit *unit = ptac_cuda_units(); unit; unit = unit->next) {
        const bool is_large = strcmp(unit->name, "step_large") == 0;

        ptac_cuda_give(unit, is_large && !asked.has_large ? "none" : "emulated");
    }
    emulator_set_order((uint64_t)asked.order);
}

static void take(void *memory, size_t bytes)
{
    if (fread(memory, 1, bytes, stdin) != bytes)
        exit(3);
}

static void give(const void *memory, size_t bytes)
{
    if (fwrite(memory, 1, bytes, stdout) != bytes)
        exit(3);
}

/* Each block begins with the address of the one before; aligned for 16 bytes. */
static void *blocks;

/* Zeros; the sanitizer sees what lies behind them. */
static void *new_block(size_t bytes)
{
    enum { HEAD = 16 };
    void **block = calloc(1, HEAD + bytes);

    if (!block)
        exit(3);
    *block = blocks;
    blocks = block;
    return (char *)block + HEAD;
}

static void *new_array(size_t bytes)
{
    return (char *)new_block(bytes + (size_t)asked.shift) + asked.shift;
}

static void free_blocks(void)
{
    while (blocks) {
        void *before = *(void **)blocks;

        free(blocks);
        blocks = before;
    }
}

static void set_options(ptac_step *step)
{
    const bool is_decoupled = asked.op == PTAC_OP_ADAMW_STEP;

    if (asked.op == PTAC_OP_SGD_STEP) {
        step->sgd = (ptac_sgd){
            .lr_neg = -asked.lr,
            .momentum = asked.momentum,
            .one_minus_dampening = 1 - asked.dampening,
            .weight_decay = asked.weight_decay,
            .nesterov = asked.nesterov,
            .maximize = asked.maximize,
        };
        return;
    }
    step->adam = (ptac_adam){
        .one_minus_beta1 = 1 - asked.beta1,
        .beta2 = asked.beta2,
        .one_minus_beta2 = 1 - asked.beta2,
        .eps = asked.eps,
        .weight_decay = is_decoupled ? 0 : asked.weight_decay,
        .decay_factor = is_decoupled ? 1 - asked.lr * asked.weight_decay : 1,
        .amsgrad = asked.n_states == 3,
        .maximize = asked.maximize,
        .is_capturable = asked.is_capturable,
        .step_dtype = (ptac_dtype)asked.step_dtype,
        .beta1 = asked.beta1,
        .lr = asked.lr,
    };
    if (asked.lr_dtype >= 0) {
        void *lr = new_block(sizeof(double));

        set_real((ptac_dtype)asked.lr_dtype, lr, 0, asked.lr);
        step->adam.lr = NAN; /* not to be looked at */
        step->adam.lr_dtype = (ptac_dtype)asked.lr_dtype;
        step->adam.lr_at = lr;
        step->adam.decoupled_decay = is_decoupled ? asked.weight_decay : 0;
        step->adam.decay_factor = 1;
    }
}

/* What bind counts and computes before each step. */
static void set_count(ptac_step_item *item, int count)
{
    item->is_first = count == 1;
    if (asked.is_capturable)
        return;
    item->step_size_neg = -(asked.lr / (1 - pow(asked.beta1, count)));
    item->bias_correction2_sqrt = sqrt(1 - pow(asked.beta2, count));
}

/* The parameters: what is stepped, or set to zero. */
typedef struct arrays {
    ptac_step_item *items;
    ptac_zero_item *zeros;
    size_t *bytes;
} arrays;

static void read_arrays(arrays *a, ptac_call *call)
{
    const size_t n = (size_t)asked.n_items, size = dtype_bytes(call->inputs[0].dtype);

    a->items = new_block(n * sizeof *a->items);
    a->zeros = new_block(n * sizeof *a->zeros);
    a->bytes = new_block(n * sizeof *a->bytes);
    for (size_t i = 0; i < n; i++) {
        int64_t elements;

        take(&elements, sizeof elements);
        a->bytes[i] = (size_t)elements * size;
        a->items[i].begin = call->inputs[0].n_elements;
        a->items[i].n = elements;
        call->inputs[0].n_elements += elements;
    }
    for (size_t i = 0; i < n; i++) {
        ptac_step_item *item = &a->items[i];

        item->param = new_array(a->bytes[i]);
        item->grad = new_array(a->bytes[i]);
        item->step = asked.is_capturable ? new_block(sizeof(double)) : NULL;
        for (int j = 0; j < asked.n_states; j++)
            item->state[j] = new_array(a->bytes[i]);
        a->zeros[i] = (ptac_zero_item){item->param, (int64_t)a->bytes[i]};
        take(item->param, a->bytes[i]);
    }
}

static void write_arrays(const arrays *a)
{
    for (int i = 0; i < asked.n_items; i++) {
        const ptac_step_item *item = &a->items[i];
        double count = 0;

        if (asked.is_capturable)
            count = real_at((ptac_dtype)asked.step_dtype, item->step, 0);
        give(item->param, a->bytes[i]);
        for (int j = 0; j < asked.n_states; j++)
            give(item->state[j], a->bytes[i]);
        give(&count, sizeof count);
    }
}

static void run(const ptac_call *call, reply *said)
{
    int n;
    const ptac_kernel *row = *ptac_registry_rows_on(PTAC_ON_CUDA, call->op, &n);

    said->refused = row->accepts(call);
    if (!said->refused)
        said->status = row->run(call);
}

static void run_steps(const arrays *a, const ptac_call *of_step, reply *said)
{
    ptac_step step = {.items = a->items, .n_items = asked.n_items};
    ptac_call call = *of_step;

    set_options(&step);
    call.params = &step;
    for (int count = 1; count <= asked.n_steps && !said->status; count++) {
        for (int i = 0; i < asked.n_items; i++) {
            take((void *)(uintptr_t)a->items[i].grad, a->bytes[i]);
            set_count(&a->items[i], count);
        }
        run(&call, said);
    }
}

int main(void)
{
    ptac_call call = {.n_inputs = 1, .stream = &a_stream};
    reply said = {0};
    arrays a;

    take(&asked, sizeof asked);
    begin();
    call.op = (ptac_op)asked.op;
    call.inputs[0].dtype = (ptac_dtype)asked.dtype;
    read_arrays(&a, &call);
    if (call.op == PTAC_OP_ZERO_GRAD) {
        call.params = &(ptac_zero_grad){a.zeros, asked.n_items};
        run(&call, &said);
    } else {
        run_steps(&a, &call, &said);
    }
    said.n_launches = n_launches;
    said.bytes_read = emulator_work().bytes_read;
    said.bytes_written = emulator_work().bytes_written;
    give(&said, sizeof said);
    write_arrays(&a);
    free_blocks();
    return 0;
}
