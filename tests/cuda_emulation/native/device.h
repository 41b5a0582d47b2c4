/*
 * device.h - two CUDA devices that are none: what the emulated torch and tests ask.
 *
 * The library carries the name and the entry points of the driver, libcuda.so.1, so
 * that the package finds it as it finds the real one. Kernels are run by the emulation
 * of tests/csrc/device, when they are launched. Memory of the devices cannot be touched
 * unless a kernel runs, or the emulated torch computes: what reads it on the host ends
 * the process.
 */
#ifndef PTAC_TESTS_EMULATED_DEVICE_H
#define PTAC_TESTS_EMULATED_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EMULATED_DEVICES = 2,
    EMULATED_STREAMS = 8, /* of a device; 0 is the default stream, NULL */
};

#define EMULATED_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* --- memory --- */

/*
 * NaNs are its poison, in its first MiB; NULL where there is none. No bytes are NULL
 * too.
 */
EMULATED_API void *emulated_alloc(int device, size_t bytes);
EMULATED_API void emulated_free(void *memory);
/* Blocks that live, and how many there ever were. */
EMULATED_API int64_t emulated_blocks(void);
EMULATED_API int64_t emulated_blocks_ever(void);
EMULATED_API void emulated_allow_blocks(int64_t n);
/* Bytes of blocks that live; the most that lived since the last ask, and now. */
EMULATED_API int64_t emulated_bytes(void);
EMULATED_API int64_t emulated_most_bytes(void);

/* Between these two, which nest, memory may be touched, by one thread's work. */
EMULATED_API void emulated_open(void);
EMULATED_API void emulated_close(void);

/* --- streams, contexts --- */

EMULATED_API void *emulated_stream(int device, int number);
/* The device of this thread, as the runtime has it: 0 where none is current. */
EMULATED_API int emulated_device(void);
EMULATED_API void emulated_set_device(int device);
/* Whether this thread has a context at all. */
EMULATED_API bool emulated_has_context(void);

/* Record what is launched on a stream from now on, or no more. */
EMULATED_API void emulated_capture(int device, int number, bool is_captured);
EMULATED_API bool emulated_is_capturing(void);

/*
 * Work of a library's on a stream of the current device, which counts as a launch of
 * that name: from then on memory may be touched, until emulated_close(). False: the
 * stream is not of that device.
 */
EMULATED_API bool emulated_begin(const char *name, void *stream);

/* --- what has happened --- */

/* Launches so far, and of the i-th: "kernel device stream". */
EMULATED_API int64_t emulated_launches(void);
EMULATED_API const char *emulated_launch(int64_t i);

/* Names of the driver's functions that were called, a line each, since the last ask. */
EMULATED_API const char *emulated_calls(void);
/* The next call of a function of this name returns an error; NULL: of none. */
EMULATED_API void emulated_fail(const char *name);
/* The next launch does nothing, so that what it should have written is NaNs. */
EMULATED_API void emulated_skip_launch(void);
/* What a device is called. */
EMULATED_API void emulated_name(int device, const char *name);

#ifdef __cplusplus
}
#endif

#endif
