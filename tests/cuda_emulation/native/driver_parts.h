/*
 * driver_parts.h - what the files of the emulated driver share.
 */
#ifndef PTAC_TESTS_EMULATED_DRIVER_PARTS_H
#define PTAC_TESTS_EMULATED_DRIVER_PARTS_H

/* Take note of a call of the driver's; what it has to return where that is not 0. */
int note_call(const char *name);

#endif
