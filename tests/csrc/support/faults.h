/*
 * faults.h - what was going on when the program was stopped by a fault.
 */
#ifndef PTAC_TESTS_FAULTS_H
#define PTAC_TESTS_FAULTS_H

/* Remember in words what is being run, at most 1023 characters. */
void faults_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *faults_noted(void);

/*
 * From now on a fault, or a sanitizer's finding, prints the note before the program
 * ends with status 1; a fault in the arena also says beside which buffer it was, by the
 * name that the given function has for its slot.
 */
void faults_watch(const char *(*name_of_slot)(int slot));

#endif
