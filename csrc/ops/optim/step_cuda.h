/*
 * step_cuda.h - the tables by which launches tell the kernels of steps what to step.
 *
 * A table travels in the kernel's parameters: nothing is allocated or copied, so that
 * a CUDA graph may capture the launch. Every device takes 4 KB of parameters; from
 * sm_70 on, with a driver and a compiler of CUDA 12.1 or newer, 32,764 bytes. Kernels
 * are compiled for both, in units of their own, since an older driver refuses a whole
 * unit with one kernel of the larger kind. Longer steps are several launches.
 *
 * Source: CUDA C++ Programming Guide, "__global__ Function Parameters"; release notes
 * of CUDA 12.1.
 */
#ifndef PTAC_OPS_OPTIM_STEP_CUDA_H
#define PTAC_OPS_OPTIM_STEP_CUDA_H

enum {
    PTAC_STEP_THREADS = 256, /* of a block */
    /*
     * Of each array, what a block takes: four packs of 16 bytes a thread. Chunks begin
     * aligned where their arrays do.
     */
    PTAC_STEP_CHUNK_BYTES = 16384,
    PTAC_STEP_PIECE_BYTES = 1 << 30,   /* of an array, what an entry has at most */
    PTAC_STEP_PARAMETERS = 4096 - 256, /* of tables: the options lie beside them */
    PTAC_STEP_PARAMETERS_LARGE = 32764 - 256,
};

/*
 * What a launch steps: arrays, or pieces of enormous ones. Chunks of all entries are
 * counted through, and a block looks up whose its own is.
 */
typedef struct ptac_sgd_entry {
    void *param;
    const void *grad;
    void *buffer; /* momentum, or NULL */
    int n;        /* elements, not 0 */
    int first_chunk;
    int is_first; /* the buffer holds nothing yet */
} ptac_sgd_entry;

typedef struct ptac_adam_entry {
    void *param;
    const void *grad;
    void *average, *square, *maximum; /* maximum: of amsgrad, else NULL */
    int n;
    int first_chunk;
    union {
        struct {
            double step_size_neg, correction;
        };
        const void *step; /* capturable: how many there were before, on the device */
    };
} ptac_adam_entry;

typedef struct ptac_zero_entry {
    void *data; /* aligned to 2 bytes */
    int bytes;
    int first_chunk;
} ptac_zero_entry;

typedef struct ptac_count_entry {
    void *step;
} ptac_count_entry;

/* The options of a call, as in step.h. */
typedef struct ptac_cuda_sgd {
    double lr_neg, momentum, one_minus_dampening, weight_decay;
    int nesterov, maximize;
} ptac_cuda_sgd;

typedef struct ptac_cuda_adam {
    double one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay, decay_factor;
    int maximize, is_capturable;
    /* Of capturable steps: */
    int step_is_f64, lr_is_f64;
    double log_beta1, log_beta2, lr;
    const void *lr_at; /* the rate lies on the device; then this is AdamW's decay: */
    double decoupled_decay;
} ptac_cuda_adam;

/* How many entries of a type a table of so many bytes has room for. */
#define PTAC_STEP_ROOM(entry, bytes) (((bytes)-8) / (int)sizeof(entry))

/* A table; that of the host has the most room, of which smaller ones are the front. */
#define PTAC_STEP_TABLE(entry, bytes)                                                  \
    struct {                                                                           \
        int n;                                                                         \
        entry entries[PTAC_STEP_ROOM(entry, bytes)];                                   \
    }

#endif
