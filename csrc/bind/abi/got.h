/*
 * got.h - the slots through which one library calls a function of another.
 *
 * A library of the ELF world calls what it imports through words that the dynamic
 * linker has filled in. Writing such a word sends the calls of that one library
 * elsewhere, for all threads, and writing it back undoes it without a trace.
 */
#ifndef PTAC_BIND_ABI_GOT_H
#define PTAC_BIND_ABI_GOT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    GOT_MAX_SLOTS = 4, /* a function has one for calls and one for its address */
};

/* The slots of one function in one library, and what was found in them. */
typedef struct got_slots {
    int n;
    uintptr_t *at[GOT_MAX_SLOTS];
    uintptr_t found[GOT_MAX_SLOTS];
} got_slots;

/*
 * Fills in the slots by which the loaded library (a handle of dlopen) reaches this
 * function; false when it does not import it, or in more ways than we know.
 */
bool got_find(void *library, const char *function, got_slots *slots);

/*
 * Writes a function's address into all of the slots; false, with none written, when a
 * page cannot be made writable. Where a page was read-only it is again afterwards.
 */
bool got_write(const got_slots *slots, uintptr_t function);

/*
 * Writes back what was found where our function still is. False when somebody else has
 * changed a slot since, which is left to them.
 */
bool got_restore(const got_slots *slots, uintptr_t function);

/*
 * The function that the slots led to when they were found; where the linker had not
 * bound them yet, the one it would have.
 */
uintptr_t got_function(void *library, const char *function, const got_slots *slots);

#endif
