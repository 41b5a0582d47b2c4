/*
 * base.c - the texts of reasons, dtypes and levels, and the error detail.
 */
#include "core/base.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const reason_texts[PTAC_N_REASONS] = {
#define X(name, text) [PTAC_##name] = text,
    PTAC_REASONS(X)
#undef X
};

static const char *const dtype_names[] = {"float32", "bfloat16", "float64",
                                          "int64",   "float16",  "other"};

static const char *const level_names[] = {"exact", "close", "fast"};

static __thread char error_text[96]; /* in static TLS, of which there is little */

const char *ptac_reason_text(ptac_reason reason)
{
    return reason < PTAC_N_REASONS ? reason_texts[reason] : "unknown";
}

const char *ptac_dtype_name(ptac_dtype dtype)
{
    return dtype_names[dtype <= PTAC_OTHER_DTYPE ? dtype : PTAC_OTHER_DTYPE];
}

const char *ptac_level_name(ptac_level level)
{
    return level <= PTAC_FAST ? level_names[level] : "unknown";
}

void ptac_error_set(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
}

const char *ptac_error_get(void)
{
    return error_text;
}
