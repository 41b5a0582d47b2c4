/*
 * base.h - the words every room shares: status, dtype, numerics level, reason.
 *
 * Nothing here knows Python, torch or an instruction set.
 */
#ifndef PTAC_CORE_BASE_H
#define PTAC_CORE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ptac_status {
    PTAC_OK = 0,
    /* Not this call, whose inputs are untouched: run stock. */
    PTAC_UNSUPPORTED,
    PTAC_UNSUITED,  /* likewise, for the values that it has */
    PTAC_NO_MEMORY, /* likewise, for want of memory to work in */
    PTAC_FAILED,    /* the row broke; text in ptac_error_get(): quarantine it */
    PTAC_NOT_YET,   /* as PTAC_UNSUPPORTED, because a kernel cannot be loaded now */
} ptac_status;

/* Element types that a kernel row may name; all others are forwarded. */
typedef enum ptac_dtype {
    PTAC_F32 = 0,
    PTAC_BF16,
    PTAC_F64,
    PTAC_I64,
    PTAC_F16,
    PTAC_OTHER_DTYPE,
    PTAC_N_DTYPES = PTAC_OTHER_DTYPE,
} ptac_dtype;

/* Where a row computes, and the data of its calls lies. */
typedef enum ptac_device {
    PTAC_ON_CPU = 0,
    PTAC_ON_CUDA,
    PTAC_N_DEVICES,
} ptac_device;

/* How close to stock a row's numbers are; README.md says what the words mean. */
typedef enum ptac_level {
    PTAC_EXACT = 0,
    PTAC_CLOSE,
    PTAC_FAST,
} ptac_level;

/*
 * Why a call went to stock. The texts are what report() prints. PTAC_TAKE is not a
 * reason: nothing speaks against the row. PTAC_OFF is never counted.
 */
#define PTAC_REASONS(X)                                                                \
    X(TAKE, "")                                                                        \
    X(OFF, "switched off")                                                             \
    X(DISABLED, "disabled in this thread")                                             \
    X(EXCLUDED, "excluded")                                                            \
    X(NUMERICS, "numerics level")                                                      \
    X(NOT_FASTER, "not measured faster")                                               \
    X(QUARANTINED, "quarantined")                                                      \
    X(DTYPE, "dtype")                                                                  \
    X(LAYOUT, "layout")                                                                \
    X(SHAPE, "shape")                                                                  \
    X(EMPTY, "empty")                                                                  \
    X(ARGUMENT, "argument")                                                            \
    X(VALUES, "values")                                                                \
    X(MEMORY, "no memory to work in")                                                  \
    X(DEVICE, "device")                                                                \
    X(SUBCLASS, "tensor subclass")                                                     \
    X(OPTIMIZER, "optimizer subclass")                                                 \
    X(AUTOCAST, "autocast")                                                            \
    X(MODE, "mode or transform active")                                                \
    X(PRECISION, "lowered precision")                                                  \
    X(HOOKS, "hooks")                                                                  \
    X(GRAD, "gradient not supported")                                                  \
    X(FORWARD, "forward call in float32")                                              \
    X(FOREACH, "foreach")                                                              \
    X(FUSED, "fused")                                                                  \
    X(CAPTURABLE, "capturable")                                                        \
    X(DIFFERENTIABLE, "differentiable")                                                \
    X(SPARSE, "sparse")                                                                \
    X(STATE, "optimizer state")                                                        \
    X(PROFILER, "profiler")                                                            \
    X(OVERLAP, "overlapping memory")                                                   \
    X(COMPILING, "kernel not compiled yet")                                            \
    X(FOREIGN, "overridden by others")

typedef enum ptac_reason {
#define X(name, text) PTAC_##name,
    PTAC_REASONS(X)
#undef X
        PTAC_N_REASONS
} ptac_reason;

static inline int64_t ptac_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Parts of n of which each has part, but for the last one. */
static inline int64_t ptac_parts(int64_t n, int64_t part)
{
    return (n + part - 1) / part;
}

const char *ptac_reason_text(ptac_reason reason);
const char *ptac_dtype_name(ptac_dtype dtype);
const char *ptac_level_name(ptac_level level);

/* Detail of this thread's last PTAC_FAILED, at most 95 characters; "" without one. */
void ptac_error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *ptac_error_get(void);

#endif
