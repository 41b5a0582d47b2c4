/*
 * cuda_mock_parts.h - what the two files of the mock driver share.
 */
#ifndef PTAC_TESTS_CUDA_MOCK_PARTS_H
#define PTAC_TESTS_CUDA_MOCK_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the driver says of mistakes that the pool does not make. */
enum {
    MOCK_INVALID_VALUE = 1,
    MOCK_INVALID_HANDLE = 400,
    MOCK_CAPTURE_UNSUPPORTED = 900,
};

void mock_violate(const char *what);
/* Counts a call that may fail; whether this one is to. */
bool mock_fails(void);
void mock_need_context(const char *what);
/* Whether work on the device may touch these addresses now. */
bool mock_is_usable(uintptr_t at, size_t bytes);

bool mock_is_capturing(void);
void mock_streams_reset(void);
int mock_events_left(void);

#endif
